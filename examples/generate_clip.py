"""A clip from a prompt, in Python: generate_clip.py MODEL_DIR PROMPT FOLDER writes frames as PNG files.

docs/python.md says what else WanPipeline takes; FOLDER/0000.png, … are what diffusers' pipeline gives as "pil".
"""
import pathlib
import sys

import zoetrope


def main(model, prompt, folder):
    def said(pipe, step, timestep, tensors):
        print(f"step {step + 1}", flush=True)

    try:
        pipe = zoetrope.WanPipeline.from_pretrained(model)
        result = pipe(prompt, height=64, width=64, num_frames=9, num_inference_steps=20, generator=1, output_type="pil",
                      callback_on_step_end=said)
    except zoetrope.Error as error:
        return f"generate_clip: {error}"
    pathlib.Path(folder).mkdir(exist_ok=True)
    for number, frame in enumerate(result.frames[0]):
        frame.save(pathlib.Path(folder) / f"{number:04}.png")
    print(result.summaries[0], end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 4 else __doc__)
