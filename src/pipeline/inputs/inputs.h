// The pictures and videos that a user gives, read, checked and brought to the size of the video. Read once a process,
// before anything long begins; what they become is condition_ranks.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// H × W is the video's size, three colours.
struct Inputs {
  std::vector<Tensor> ends;  // [H, W, 3] U8: image and last_image
  Tensor pixels;             // [pictures, 3, S, S] F32: the same as an image encoder sees them, where there is one
  Tensor control_video;      // [F, H, W, 3] U8
  Tensor mask;               // [F, H, W, 3] U8, or [1, H, W, 3] for all frames
  std::vector<Tensor> references;  // [H, W, 3] F32: in the middle of white
  // Animate's driving videos, without the frames that are repeated: frame i of a run is driving_frame(video, i).
  Tensor pose, background;         // [F, H, W, 3] U8; `mask` as [F, H, W, 1]: its luminance
  Tensor face;                     // [F, z, z, 3] U8
  std::vector<std::string> notes;  // where a file has more, or another shape, than is used

  // [F, H, W, 3], null without a mask.
  TensorView mask_frames(int64_t frames) const;
  // "image=HASH" a line, for comparing ranks.
  std::string fingerprint() const;
};

// Frame `index` of a video that is played back and forth, its ends once, where it has fewer frames.
TensorView driving_frame(const Tensor& video, int64_t index);

// Options that check_inputs() has passed. Throws Error naming the key and the file.
Inputs read_inputs(const GenerateOptions& options, const ModelFolder& model);
// Bytes of what read_inputs() would hold, known without reading; what an image encoder sees not counted. `face_size`:
// side of Animate's face frames, 0 for other models.
int64_t inputs_bytes(const GenerateOptions& options, int64_t face_size = 0);

// With max_area: height and width after the shape of the image; Animate: as many frames as pose_video has. Reads those.
GenerateOptions with_size_of_inputs(const GenerateOptions& options, const ModelFolder& model);

}  // namespace zoetrope::pipeline
