// A palette of 256 colours for a video, and the nearest of them to any colour. For GIF files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zoetrope::io {

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
};

class Palette {
 public:
  static constexpr int kColours = 256;

  // Counts colours in cells of 4³ of the 8-bit cube, frame by frame.
  class Histogram {
   public:
    Histogram();
    void add(const uint8_t* rgb, size_t pixels);

   private:
    friend class Palette;
    struct Cell {
      uint64_t count = 0;
      std::array<uint64_t, 3> sum{};
    };
    std::vector<Cell> cells_;
  };

  explicit Palette(const Histogram& histogram);  // median cut
  const std::vector<Rgb>& colours() const { return colours_; }
  uint8_t nearest(int r, int g, int b);  // of the cell's centre; channels outside [0, 255] are clamped

 private:
  std::vector<Rgb> colours_;
  std::vector<int16_t> nearest_;  // by cell; −1: not computed yet
};

}  // namespace zoetrope::io
