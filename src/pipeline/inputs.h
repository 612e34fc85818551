// The pictures and videos that a user gives, read, checked and brought to the size of the video. Read once a process,
// before anything long begins; what they become is condition_ranks.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "pipeline/generate_options.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

// H × W is the video's size, three colours.
struct Inputs {
  std::vector<Tensor> ends;  // [H, W, 3] U8: image and last_image
  Tensor pixels;             // [pictures, 3, S, S] F32: the same as an image encoder sees them, where there is one
  Tensor control_video;      // [F, H, W, 3] U8
  Tensor mask;               // [F, H, W, 3] U8, or [1, H, W, 3] for all frames
  std::vector<Tensor> references;  // [H, W, 3] F32: in the middle of white
  std::vector<std::string> notes;  // where a file has more, or another shape, than is used

  // [F, H, W, 3], null without a mask.
  TensorView mask_frames(int64_t frames) const;
  // "image=HASH" a line, for comparing ranks.
  std::string fingerprint() const;
};

// Options that check_inputs() has passed. Throws Error naming the key and the file.
Inputs read_inputs(const GenerateOptions& options, const ModelFolder& model);
// Bytes of what read_inputs() would hold, known without reading; what an image encoder sees not counted.
int64_t inputs_bytes(const GenerateOptions& options);

// With max_area: height and width after the shape of the image; reads it. Else the options as they are.
GenerateOptions with_size_of_image(const GenerateOptions& options, const ModelFolder& model);

}  // namespace zoetrope::pipeline
