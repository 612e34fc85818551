// What a run computes, as plain numbers: the operations of a denoising step and of what comes before and after it. A
// model family fills it (models/wan/step_work.h); the simulator prices it. The memory of the same run is workload.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "base/index_range.h"
#include "parallel/shards.h"
#include "planner/bytes.h"

namespace zoetrope::planner {

struct Work {
  std::string name;  // "Wan 2.2 A14B, 1280 x 720, 81 frames": for people

  // One forward of one guidance branch.
  int64_t layers = 0;
  int64_t tokens = 0;    // S
  int64_t heads = 0;     // H
  int64_t head_dim = 0;  // D
  int64_t width = 0;     // d
  int64_t element_bytes = 2;
  int64_t text_rows = 512;
  double linear_flop = 0;  // of a layer: all its matrix multiplications, all tokens
  double int8_share = 0;   // of linear_flop, in int8: the mean of all layers
  double cross_flop = 0;   // of a layer: cross-attention's q·kᵀ and p·v, all tokens
  double ends_flop = 0;    // patch embedding and projection, once a forward, all tokens
  // Tensor ranks divide linear_flop and cross_flop by heads, but of linear_flop this part in so many units; 0: evenly.
  double hidden_flop = 0;
  int64_t hidden_units = 0;
  int64_t sum_rows = 0;  // most rows of a sample that tensor ranks add up at a time; 0: all at once
  // Self-attention, 4·S²·H·D a layer, follows from the sizes.
  int64_t kv_vector_bytes = 0;  // as in parallel::Sizes: what the run says, never the planner's choice
  bool int8_attention = false;  // likewise

  int64_t videos = 1;  // of a batch, denoised together; they share the steps and what comes before
  int branches = 1;    // of each video: 2 with guidance
  int64_t steps = 0;
  int64_t latent_bytes = 0;  // of the velocity that ranks gather at the end of a step, one branch

  // What of a layer's packed weights is not in memory when a forward needs it. Weights that every prompt meets once, as
  // those of the text's keys, are not among them.
  struct LayerWeights {
    Bytes layer;             // of a layer: what ranks that share weights gather
    int64_t fetched = 0;     // layers of a forward that are fetched from files, while those before are computed
    Bytes read;              // from these, of each of them
    Bytes packed;            // of each what is converted, at least as bf16; 0: the files have it as it is computed with
    bool in_memory = false;  // the files are, so that no disk is read
    int ranks_here = 0;      // ranks that fetch together, as those of a process do; 0: all of a host

    // The same of one of several equal parts of every layer, by their number: a tensor rank's, which ranks of a process
    // each fetch for themselves.
    struct Part {
      Bytes layer;
      int64_t fetched = 0;
      Bytes read;
      Bytes packed = {};
    };
    std::map<int, Part> parts;
    // Where they are not known, every byte is divided.
    Part part(int of) const {
      const auto known = parts.find(of);
      return known != parts.end() ? known->second : Part{layer / of, fetched, read / of, packed / of};
    }
  } weights;
  bool samples_apart = false;  // samples of a batch go through the layers one after another

  // Of all runs side by side on the machine, this one's among them; 0: it is alone. A host reads files for each of its
  // runs.
  int ranks_of_all_runs = 0;
  int runs_of_host(int ranks, int devices_per_host) const {
    return std::max(1, std::min(ranks_of_all_runs, devices_per_host) / ranks);
  }

  // Before and after.
  double text_flop = 0;  // all prompts
  int64_t text_element_bytes = 2;
  Bytes text_weights;         // those that every prompt meets, read from the device's memory once
  Bytes text_read;            // of these, from files as it computes, through the map; 0: they are resident
  Bytes weights_read;         // of all experts and the VAE, before what is streamed, from files, once a host
  double image_flop = 0;      // of an image encoder, by one rank
  double condition_flop = 0;  // of what the VAE encodes before denoising, shared as its decoding is
  double vae_flop = 0;
  int64_t vae_rows = 0;  // latent rows that ranks can share; with one more rank one has none
  int64_t vae_element_bytes = 4;

  // Of everything: all steps, and what comes before and after them.
  double flop() const {
    const auto s = static_cast<double>(tokens);
    const double attention = 4 * s * s * static_cast<double>(heads * head_dim);
    const double forward = static_cast<double>(layers) * (linear_flop + cross_flop + attention) + ends_flop;
    return static_cast<double>(steps * batch(1)) * forward + text_flop + image_flop + condition_flop + vae_flop;
  }

  // Of a layer's matrix multiplications and cross-attention, that of the tensor rank with most.
  double layer_flop(int tensor) const {
    if (tensor == 1) return linear_flop + cross_flop;
    const double hidden = hidden_units == 0
                              ? hidden_flop / tensor
                              : hidden_flop * static_cast<double>(ceil_div(hidden_units, int64_t{tensor})) /
                                    static_cast<double>(hidden_units);
    return (linear_flop - hidden_flop + cross_flop) / tensor + hidden;
  }

  // Samples that go through the layers together where the branches are divided among `data` parts.
  int64_t batch(int data) const { return videos * branches / data; }
  // Passes over the layers in a step.
  int64_t forwards(int data) const { return samples_apart ? batch(data) : 1; }
  parallel::Sizes sizes(int64_t batch) const {
    parallel::Sizes sizes{batch, tokens, heads, head_dim, element_bytes};
    sizes.kv_vector_bytes = kv_vector_bytes;
    return sizes;
  }
};

}  // namespace zoetrope::planner
