// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

namespace zoetrope {

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}  // negative: none
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace zoetrope
