#include "base/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <map>
#include <sstream>
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

// Where documents begin, and nothing else.
class DocumentStarts : public YAML::EventHandler {
 public:
  std::vector<YAML::Mark> marks;
  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// YAML::LoadAll() would not come back from what the parser neither takes nor refuses, such as a comma at the beginning.
// Without blank lines at the end, after which yaml-cpp takes a quote for closed that is not.
void check_one_document(const std::string& text, const std::string& file) {
  std::istringstream stream(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.marks.size() < 2 && parser.HandleNextDocument(starts)) continue;
  if (starts.marks.size() < 2) return;
  const YAML::Mark first = starts.marks[0], second = starts.marks[1];
  if (first.pos == second.pos) fail("{} line {}: not YAML: nothing can begin like this", file, first.line + 1);
  fail("{}: holds 2 documents or more, the second from line {} on; keep one, without a line of --- in between", file,
       second.line + 1);
}

}  // namespace

YAML::Node read_yaml(const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::string text = read_file(path, kMaxYamlBytes);
  check_text(text, file);
  try {
    check_one_document(text, file);
    const YAML::Node document = YAML::Load(text);
    Checker(file).check(document, 0);
    return document;
  } catch (const YAML::Exception& error) {
    if (error.msg == YAML::ErrorMsg::EOF_IN_SCALAR)
      fail("{}: not YAML: a quote is opened and not closed before the end of the file", file);
    fail("{} line {}: not YAML: {}", file, error.mark.line + 1, error.msg);
  }
}

}  // namespace zoetrope
