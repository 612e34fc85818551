// tokenizer.json: added tokens, normalizer, pre_tokenizer, model, post_processor, in the order text passes them.
// Truncation, padding and decoder blocks are not read: the pipeline decides about the first two and never decodes.
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/json_file.h"
#include "text/normalizer.h"
#include "text/tokenizer_model.h"
#include "text/unigram.h"

namespace zoetrope::text {

namespace {

using nlohmann::json;

Unigram read_unigram(const json& model, const std::string& where) {
  if (const auto type = json_get<std::string>(model, "type", where); type != "Unigram") {
    fail("{}.type is '{}', and must be Unigram, the model that UMT5's tokenizer has", where, type);
  }
  const json& vocab = json_field(model, "vocab", where);
  if (!vocab.is_array() || vocab.empty()) fail("{}.vocab must be a list of [piece, score], and not empty", where);
  std::vector<UnigramPiece> pieces;
  pieces.reserve(vocab.size());
  for (const json& entry : vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      fail("{}.vocab[{}] must be [piece, score]", where, pieces.size());
    }
    pieces.push_back({entry[0].get<std::string>(), entry[1].get<double>()});
  }
  std::optional<int32_t> unk_id;
  if (model.contains("unk_id") && !model["unk_id"].is_null()) {
    unk_id = json_get<int32_t>(model, "unk_id", where);
    if (static_cast<size_t>(*unk_id) >= pieces.size()) {
      fail("{}.unk_id is {}, and must be below {}, the size of the vocabulary", where, *unk_id, pieces.size());
    }
  }
  return {std::move(pieces), unk_id, json_get_or<bool>(model, "byte_fallback", false, where)};
}

class JsonModel final : public Tokenizer::Model {
 public:
  JsonModel(const json& root, const std::string& file)
      : unigram_(read_unigram(json_field(root, "model", file), file + ": model")),
        normalize_(make_normalizer(root.value("normalizer", json()), file + ": normalizer")),
        pre_tokenize_(make_pre_tokenizer(root.value("pre_tokenizer", json()), file + ": pre_tokenizer")) {
    vocab_size = unigram_.size();
    read_added_tokens(root.value("added_tokens", json()), file + ": added_tokens");
    eos_id = find("</s>").value_or(1);
    pad_id = find("<pad>").value_or(0);
  }

  // The id of a token by its spelling, if there is one.
  std::optional<int32_t> find(const std::string& token) const {
    for (const AddedToken& added : added_) {
      if (added.content == token) return added.id;
    }
    const int32_t id = unigram_.find(token);
    return id == Trie::kNone ? std::nullopt : std::optional(id);
  }

  void read_post_processor(const json& block, const std::string& where);

  std::vector<int32_t> pieces(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const Span& raw : raw_tokens_.split(text)) {
      if (raw.id != Trie::kNone) {
        ids.push_back(raw.id);
        continue;
      }
      const Word normal = normalize_({std::string(raw.text), raw.text.data() == text.data()});
      for (const Span& span : normal_tokens_.split(normal.text)) {
        if (span.id != Trie::kNone) {
          ids.push_back(span.id);
          continue;
        }
        const bool first = normal.first && span.text.data() == normal.text.data();
        for (const Word& word : pre_tokenize_({{std::string(span.text), first}})) unigram_.encode(word.text, ids);
      }
    }
    return ids;
  }

 private:
  void read_added_tokens(const json& block, const std::string& where);

  Unigram unigram_;
  Normalizer normalize_;
  PreTokenizer pre_tokenize_;
  std::vector<AddedToken> added_;
  AddedTokens raw_tokens_;     // looked for in the text as it is
  AddedTokens normal_tokens_;  // looked for after normalisation
};

// A token of the vocabulary has its id there, any other the next free one; the file's "id" repeats that (where it does
// not, the reference follows the vocabulary too).
void JsonModel::read_added_tokens(const json& block, const std::string& where) {
  if (!block.is_null() && !block.is_array()) fail("{} is {}, and must be a list", where, block.type_name());
  std::vector<AddedToken> raw, normal;
  for (const json& entry : block) {
    const std::string here = fmt::format("{}[{}]", where, added_.size());
    AddedToken token;
    token.content = json_get<std::string>(entry, "content", here);
    json_get<int32_t>(entry, "id", here);
    token.single_word = json_get_or<bool>(entry, "single_word", false, here);
    token.lstrip = json_get_or<bool>(entry, "lstrip", false, here);
    token.rstrip = json_get_or<bool>(entry, "rstrip", false, here);
    if (token.content.empty()) continue;
    const std::optional<int32_t> known = find(token.content);
    token.id = known ? *known : static_cast<int32_t>(vocab_size++);
    added_.push_back(token);
    if (json_get_or<bool>(entry, "normalized", true, here)) {
      token.content = normalize_({token.content}).text;
      normal.push_back(token);
    } else {
      raw.push_back(token);
    }
  }
  raw_tokens_ = AddedTokens(std::move(raw));
  normal_tokens_ = AddedTokens(std::move(normal));
}

// [name, id] as RobertaProcessing and BertProcessing write it.
int32_t read_pair(const json& block, const char* key, const std::string& where) {
  const json& pair = json_field(block, key, where);
  if (!pair.is_array() || pair.size() != 2) fail("{}.{} must be [token, id]", where, key);
  return json_as<int32_t>(pair[1], fmt::format("{}.{}[1]", where, key));
}

void JsonModel::read_post_processor(const json& block, const std::string& where) {
  if (block.is_null()) {
    suffix = {eos_id};  // the model cannot do without, and its tokenizer class appends it itself
    return;
  }
  const auto type = json_get<std::string>(block, "type", where);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    prefix = {read_pair(block, "cls", where)};
    suffix = {read_pair(block, "sep", where)};
    return;
  }
  if (type != "TemplateProcessing") {
    fail("{}: type '{}' is not supported; TemplateProcessing, RobertaProcessing and BertProcessing are", where, type);
  }
  bool seen = false;
  for (const json& piece : json_field(block, "single", where)) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (seen) fail("{}.single names the text twice", where);
      seen = true;
      continue;
    }
    const std::string here = where + ".special_tokens";
    const auto name = json_get<std::string>(json_field(piece, "SpecialToken", where + ".single"), "id", where);
    const json& token = json_field(json_field(block, "special_tokens", where), name.c_str(), here);
    for (const json& id : json_field(token, "ids", here))
      (seen ? suffix : prefix).push_back(json_as<int32_t>(id, here));
  }
  if (!seen) fail("{}.single does not name the text (\"Sequence\")", where);
}

// The names of the padding and the closing token, where tokenizer_config.json changes them; a string or {"content": …}.
std::optional<std::string> configured_token(const std::filesystem::path& folder, const char* key) {
  const auto file = folder / "tokenizer_config.json";
  if (!std::filesystem::is_regular_file(file)) return std::nullopt;
  const json config = read_json_file(file);
  if (!config.is_object() || !config.contains(key) || config[key].is_null()) return std::nullopt;
  const json& value = config[key];
  const std::string where = fmt::format("{}: {}", file.string(), key);
  return value.is_object() ? json_get<std::string>(value, "content", where) : json_as<std::string>(value, where);
}

}  // namespace

std::unique_ptr<Tokenizer::Model> load_tokenizer_json(const std::filesystem::path& file) {
  const json root = read_json_file(file);
  auto model = std::make_unique<JsonModel>(root, file.string());
  if (const auto name = configured_token(file.parent_path(), "eos_token")) {
    model->eos_id = model->find(*name).value_or(model->eos_id);
  }
  if (const auto name = configured_token(file.parent_path(), "pad_token")) {
    model->pad_id = model->find(*name).value_or(model->pad_id);
  }
  model->read_post_processor(root.value("post_processor", json()), file.string() + ": post_processor");
  return model;
}

}  // namespace zoetrope::text
