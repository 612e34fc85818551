// tokenizer.json: added tokens, normalizer, pre_tokenizer, model, post_processor, in the order text passes them.
// Truncation, padding and decoder blocks are not read: the pipeline decides about the first two and never decodes.
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "text/json_number.h"
#include "text/tokenizer_model.h"

namespace zoetrope::text {

namespace {

using nlohmann::json;

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

Unigram read_unigram(const JsonObject& model) {
  const std::string where = model.path();
  if (const auto type = model.get<std::string>("type"); type != "Unigram") {
    fail("{}.type is '{}', and must be Unigram, the model that UMT5's tokenizer has", where, type);
  }
  if (!model.has("vocab") || !model.raw()["vocab"].is_array() || model.raw()["vocab"].empty()) {
    fail("{}.vocab must be a list of [piece, score], and not empty", where);
  }
  const json& vocab = model.raw()["vocab"];  // too many entries for a JsonObject each
  std::vector<UnigramPiece> pieces;
  pieces.reserve(vocab.size());
  for (const json& entry : vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      fail("{}.vocab[{}] must be [piece, score]", where, pieces.size());
    }
    pieces.push_back({entry[0].get<std::string>(), entry[1].get<double>()});
  }
  std::optional<int32_t> unk_id;
  if (model.has("unk_id")) {
    unk_id = static_cast<int32_t>(model.get_between<int64_t>("unk_id", 0, std::ssize(pieces) - 1));
  }
  return {std::move(pieces), unk_id, model.get<bool>("byte_fallback", false)};
}

class JsonModel final : public UnigramModel {
 public:
  explicit JsonModel(const JsonObject& root)
      : UnigramModel(read_unigram(root.object("model")), make_normalizer(root.find_object("normalizer")),
                     make_pre_tokenizer(root.find_object("pre_tokenizer"))) {
    if (root.has("added_tokens")) read_added_tokens(root.objects("added_tokens"));
    eos_id = find("</s>").value_or(1);
    pad_id = find("<pad>").value_or(0);
  }

  // The id of a token by its spelling, if there is one.
  std::optional<int32_t> find(const std::string& token) const {
    for (const AddedToken& added : added_) {
      if (added.content == token) return added.id;
    }
    const int32_t id = unigram.find(token);
    return id == Trie::kNone ? std::nullopt : std::optional(id);
  }

  void read_post_processor(const std::optional<JsonObject>& block);

 private:
  void read_added_tokens(const std::vector<JsonObject>& entries);

  std::vector<AddedToken> added_;
};

// A token of the vocabulary has its id there, any other the next free one; the file's "id" repeats that (where it does
// not, the reference follows the vocabulary too).
void JsonModel::read_added_tokens(const std::vector<JsonObject>& entries) {
  std::vector<AddedToken> raw, normal;
  for (const JsonObject& entry : entries) {
    AddedToken token;
    token.content = entry.get<std::string>("content");
    entry.get_between<int64_t>("id", 0, kMaxId);
    token.single_word = entry.get<bool>("single_word", false);
    token.lstrip = entry.get<bool>("lstrip", false);
    token.rstrip = entry.get<bool>("rstrip", false);
    if (token.content.empty()) continue;
    const std::optional<int32_t> known = find(token.content);
    token.id = known ? *known : static_cast<int32_t>(vocab_size++);
    added_.push_back(token);
    if (entry.get<bool>("normalized", true)) {
      token.content = normalize({token.content}).text;
      normal.push_back(token);
    } else {
      raw.push_back(token);
    }
  }
  raw_tokens = AddedTokens(std::move(raw));
  normal_tokens = AddedTokens(std::move(normal));
}

int32_t checked_id(int64_t id, const JsonObject& block) {
  if (id < 0 || id > kMaxId) fail("{}: {} is not a token's id, which is from 0 to {}", block.path(), id, kMaxId);
  return static_cast<int32_t>(id);
}

// [name, id] as RobertaProcessing and BertProcessing write it.
int32_t read_pair(const JsonObject& block, const char* key) {
  const json pair = block.raw().value(key, json());
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer()) {
    fail("{}.{} must be [token, id]", block.path(), key);
  }
  return checked_id(pair[1].get<int64_t>(), block);
}

void JsonModel::read_post_processor(const std::optional<JsonObject>& block) {
  if (!block) {
    suffix = {eos_id};  // the model cannot do without, and its tokenizer class appends it itself
    return;
  }
  const auto type = block->get<std::string>("type");
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    prefix = {read_pair(*block, "cls")};
    suffix = {read_pair(*block, "sep")};
    return;
  }
  if (type != "TemplateProcessing") {
    fail("{}: type '{}' is not supported; TemplateProcessing, RobertaProcessing and BertProcessing are", block->path(),
         type);
  }
  bool seen = false;
  for (const JsonObject& piece : block->objects("single")) {
    if (piece.has("Sequence")) {
      if (seen) fail("{}.single names the text twice", block->path());
      seen = true;
      continue;
    }
    const JsonObject token =
        block->object("special_tokens").object(piece.object("SpecialToken").get<std::string>("id"));
    for (const int64_t id : token.get<std::vector<int64_t>>("ids")) {
      (seen ? suffix : prefix).push_back(checked_id(id, token));
    }
  }
  if (!seen) fail("{}.single does not name the text (\"Sequence\")", block->path());
}

// The name of the padding or the closing token, where tokenizer_config.json changes it; a string or {"content": …}.
std::optional<std::string> configured_token(const JsonObject& config, const std::string& key) {
  if (!config.has(key)) return std::nullopt;
  return config.raw()[key].is_object() ? config.object(key).get<std::string>("content") : config.get<std::string>(key);
}

}  // namespace

std::unique_ptr<Tokenizer::Model> load_tokenizer_json(const std::filesystem::path& file) {
  const JsonObject root = JsonObject::load(file, reference_double);
  auto model = std::make_unique<JsonModel>(root);
  if (const auto path = file.parent_path() / "tokenizer_config.json"; std::filesystem::is_regular_file(path)) {
    const JsonObject config = JsonObject::load(path);
    if (const auto name = configured_token(config, "eos_token")) {
      model->eos_id = model->find(*name).value_or(model->eos_id);
    }
    if (const auto name = configured_token(config, "pad_token")) {
      model->pad_id = model->find(*name).value_or(model->pad_id);
    }
  }
  model->read_post_processor(root.find_object("post_processor"));
  return model;
}

}  // namespace zoetrope::text
