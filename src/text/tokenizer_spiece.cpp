// spiece.model through the SentencePiece library. Only where there is no tokenizer.json: for characters outside the
// vocabulary and for special tokens spelled out in a prompt the ids are not the same.
#include <sentencepiece_processor.h>

#include "base/error.h"
#include "text/tokenizer_model.h"

namespace zoetrope::text {

namespace {

class SentencePieceModel final : public Tokenizer::Model {
 public:
  // `where` for errors.
  SentencePieceModel(std::string_view bytes, const std::string& where) {
    if (bytes.empty()) fail("{}: the file is empty", where);
    const auto status = processor_.LoadFromSerializedProto(absl::string_view(bytes.data(), bytes.size()));
    if (!status.ok()) {
      fail("{}: not a SentencePiece model, or a truncated one ({})", where, status.ToString());
    }
    if (processor_.eos_id() < 0) fail("{}: the model has no </s> to end a prompt with", where);
    eos_id = processor_.eos_id();
    pad_id = processor_.pad_id() < 0 ? 0 : processor_.pad_id();
    vocab_size = processor_.GetPieceSize();
    suffix = {eos_id};
  }

  std::vector<int32_t> pieces(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &ids);
    if (!status.ok()) fail("SentencePiece cannot encode the prompt: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer::Model> read_sentencepiece(std::string_view bytes, const std::string& where) {
  return std::make_unique<SentencePieceModel>(bytes, where);
}

}  // namespace zoetrope::text
