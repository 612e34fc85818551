// The decoder's part of a journal. Each rank that decodes writes the rows of what its layers remember to a file of its
// own; rank 0 then records that all of them are there. Any number of ranks can go on from these files, if each can read
// the journal's folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

#include "pipeline/records/journal.h"
#include "trace/trace.h"

namespace zoetrope::pipeline {

// A rank's part of a frame that a layer remembers.
struct RememberedRows {
  TensorView values;  // [rows, W, C], each row contiguous; null: the layer has none yet
  IndexRange rows;    // of the picture at this layer
  int64_t height = 0;
};

// What the layers remembered, of the whole picture, from the files of all parts.
class RememberedFrames {
 public:
  // Throws Error for files that are missing, damaged or not of `dtype`. `rows` of `latent_rows`: those that this rank
  // has, of which the files are checked.
  RememberedFrames(const std::filesystem::path& folder, const DecodeState& state, DType dtype, IndexRange rows,
                   int64_t latent_rows);
  ~RememberedFrames();
  Shape shape(size_t index) const;  // [H, W, C]; rank 0: empty
  void read(size_t index, int64_t row, const TensorView& to) const;

 private:
  struct Part;
  std::vector<std::unique_ptr<Part>> parts_;
};

// One part's file, which belongs to a record with this state and no other. Throws Error where it cannot be written.
void write_remembered(const std::filesystem::path& file, const DecodeState& state, DType dtype,
                      const std::vector<RememberedRows>& frames);

// Of one clip, on every rank that decodes it.
class DecodeJournal {
 public:
  struct Setup {
    std::filesystem::path folder;
    Journal* journal = nullptr;  // rank 0's
    int64_t segment = 0;
    const DecodeState* from = nullptr;  // of this clip; null: it begins
    int64_t kept_frames = 0;            // with `from`: of the journal, up to its place
    Shape frame;                        // {H, W, 3}
    DType dtype = DType::kF32;
    int64_t latent_rows = 0, latent_frames = 0;
    // Rank 0's: the record to which the state is added.
    std::function<RunRecord()> record;
    Journal::Note note;  // rank 0's
  };
  // Collective over `decoders`, as the two below. Where some rank cannot read what is remembered, all begin the clip
  // again, and a note says so.
  DecodeJournal(Setup setup, comm::Communicator& decoders);

  // Where the decoder goes on; null and 0: with the first frame.
  const RememberedFrames* remembered() const { return remembered_.get(); }
  int64_t latent_frames_done() const { return remembered_ ? setup_.from->latent_frames : 0; }
  int64_t frames_done() const { return remembered_ ? setup_.from->frames : 0; }

  // After each latent frame: `done` of them. `frames` are decoded and in the journal; it matters on rank 0.
  void after(int64_t video, int64_t done, int64_t frames, const std::vector<RememberedRows>& values);

 private:
  bool due(const std::vector<RememberedRows>& values);
  void record(int64_t video, int64_t done, int64_t frames, const std::vector<RememberedRows>& values);

  const Setup setup_;
  comm::Communicator& decoders_;
  std::unique_ptr<RememberedFrames> remembered_;
  int64_t generation_ = 0;  // of the files to write next
  trace::Clock::time_point last_ = trace::Clock::now();
  double cost_ = 0;  // seconds of the last record
};

}  // namespace zoetrope::pipeline
