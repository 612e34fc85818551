#include "base/yaml.h"

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/utf8.h"

namespace zoetrope {
namespace {

constexpr size_t kMaxYamlBytes = size_t{16} << 20;
constexpr int kMaxDepth = 64;
constexpr int64_t kMaxNodes = 1'000'000;  // an alias counts as all nodes it refers to

class Checker {
 public:
  explicit Checker(const std::string& file) : file_(file) {}

  void check(const YAML::Node& node, int depth) {
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
      fail("{} line {}: nested too deeply, or an alias that stands for itself", file_, node.Mark().line + 1);
    }
    if (node.IsSequence()) {
      for (const YAML::Node& element : node) check(element, depth + 1);
    }
    if (!node.IsMap()) return;
    std::map<std::string, int> lines;
    for (const auto& entry : node) {
      const int line = entry.first.Mark().line + 1;
      if (entry.first.IsScalar()) {
        const auto [first, is_new] = lines.emplace(entry.first.Scalar(), line);
        if (!is_new) {
          fail("{} line {}: {} is given again, after line {}; keep one of them", file_, line, entry.first.Scalar(),
               first->second);
        }
      }
      check(entry.second, depth + 1);
    }
  }

 private:
  const std::string& file_;
  int64_t nodes_ = 0;
};

// yaml-cpp guesses UTF-16 and UTF-32 from zero bytes, and does not come back from some that are neither.
void check_text(const std::string& text, const std::string& file) {
  decode_utf8_or_fail(text, file);
  int line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    if (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t')
      fail("{} line {}: byte 0x{:02X} is a control character; YAML is text", file, line, static_cast<int>(c));
  }
}

}  // namespace

YAML::Node read_yaml(const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::string text = read_file(path, kMaxYamlBytes);
  check_text(text, file);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      fail("{}: holds {} documents, the second from line {} on; keep one, without a line of --- in between", file,
           documents.size(), documents[1].Mark().line + 1);
    }
    if (documents.empty()) return YAML::Node();
    Checker(file).check(documents.front(), 0);
    return documents.front();
  } catch (const YAML::Exception& error) {
    fail("{} line {}: not YAML: {}", file, error.mark.line + 1, error.msg);
  }
}

}  // namespace zoetrope
