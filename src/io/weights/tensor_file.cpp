#include "io/weights/tensor_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "io/weights/checksum.h"
#include "io/weights/gguf.h"
#include "io/weights/safetensors.h"

namespace zoetrope::io {
namespace {

struct Container {
  std::string_view ending, first_bytes;  // a file that has either is of this container
  TensorHeader (*read)(std::string_view contents, const std::string& file);
};
// The last one is what no other is: every file begins with no bytes.
constexpr Container kContainers[] = {{".gguf", kGgufMagic, read_gguf_header},
                                     {".safetensors", "", read_safetensors_header}};

// Opening one may run a program that it holds, so none is.
bool is_pickle(const std::filesystem::path& path) {
  const auto is = [&](const char* ending) { return path.extension() == ending; };
  return is(".pth") || is(".pt") || is(".ckpt") || is(".bin");
}

}  // namespace

void TensorInfo::set_extents(std::vector<int64_t> all) {
  extents = std::move(all);
  shape = {};
  if (extents.size() <= Shape::kMaxRank) {
    for (const int64_t extent : extents) shape.append(extent);
  } else {
    shape.append(std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>()));
  }
}

void TensorHeader::check_overlaps(const std::string& file) const {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  for (const auto& [name, info] : tensors) order.emplace_back(&name, &info);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->bytes) < std::pair(b.second->offset, b.second->bytes);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const auto& [name, info] = order[i - 1];
    if (info->offset + info->bytes > order[i].second->offset)
      fail("{}: tensor '{}' overlaps tensor '{}'; tensors must not share bytes", file, *order[i].first, *name);
  }
}

std::vector<std::string_view> weight_file_endings() {
  std::vector<std::string_view> endings;
  for (const Container& container : kContainers) endings.push_back(container.ending);
  return endings;
}

bool has_weight_file_ending(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  return std::any_of(std::begin(kContainers), std::end(kContainers),
                     [&](const Container& container) { return ending == container.ending; });
}

TensorFile::TensorFile(std::filesystem::path path) : path_(std::move(path)), file_(path_) {}

std::shared_ptr<const TensorFile> TensorFile::open(const std::filesystem::path& path) {
  const std::shared_ptr<TensorFile> file(new TensorFile(path));
  const uint64_t size = file->file_.bytes();
  std::string_view contents;
  if (size > 0) {  // an empty file cannot be mapped
    file->map_ = FileMap(file->file_.descriptor(), size, path.string());
    contents = {reinterpret_cast<const char*>(file->map_.data()), size};
  }
  if (is_pickle(path)) {
    fail("{}: is a PyTorch pickle; use the .safetensors or .gguf version of this model", path.string());
  }
  if (contents.starts_with("version https://git-lfs")) {
    fail(
        "{}: is a Git LFS pointer of {} bytes in place of the weights; fetch them with `git lfs pull`, or download "
        "again",
        path.string(), size);
  }
  const auto* container = std::find_if(std::begin(kContainers), std::end(kContainers), [&](const Container& known) {
    return contents.starts_with(known.first_bytes) || path.extension() == known.ending;
  });
  file->header_ = container->read(contents, path.string());
  if (size > 0) ::madvise(file->map_.data(), size, MADV_DONTNEED);
  return file;
}

const MetadataList* TensorFile::list(const std::string& key) const {
  const auto found = header_.lists.find(key);
  return found == header_.lists.end() ? nullptr : &found->second;
}

std::string_view TensorFile::bytes(const MetadataList& list) const {
  return {reinterpret_cast<const char*>(map_.data()) + list.offset, list.bytes};
}

std::string_view TensorFile::metadata_entry(const std::string& key) const {
  const FileRange& range = header_.entries.at(key);
  return {reinterpret_cast<const char*>(map_.data()) + range.offset, range.bytes};
}

const TensorInfo& TensorFile::info(const std::string& name) const {
  const auto found = tensors().find(name);
  if (found == tensors().end()) {
    fail("{}: tensor '{}' is missing (the file has {} others)", path_.string(), name, tensors().size());
  }
  return found->second;
}

TensorView TensorFile::flat(const std::string& name) const {
  const TensorInfo& found = info(name);
  if (!found.dtype) {
    fail("{}: tensor '{}' has dtype {}, which cannot be computed with; store it as F32, BF16 or F16", path_.string(),
         name, found.dtype_name);
  }
  return {map_.data() + found.offset, *found.dtype, {found.shape.size()}};
}

TensorView TensorFile::tensor(const std::string& name) const {
  const TensorView elements = flat(name);
  const TensorInfo& found = info(name);
  if (found.extents.size() > Shape::kMaxRank) {
    fail("{}: tensor '{}' has {} axes, but at most {} are supported", path_.string(), name, found.extents.size(),
         Shape::kMaxRank);
  }
  return elements.reshape(found.shape);
}

const std::byte* TensorFile::bytes(const std::string& name) const { return map_.data() + info(name).offset; }

void TensorFile::will_need(const std::string& name) const {
  const TensorInfo& found = info(name);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = found.offset / page * page;
  if (found.bytes > 0) ::madvise(map_.data() + begin, found.offset + found.bytes - begin, MADV_WILLNEED);
}

// The first touch of a tensor brings back the end of the one before it. When only a tensor's own pages were released, a
// seventh of the 1.3B checkpoint stayed resident.
void TensorFile::release(const std::string& name) const {
  const TensorInfo& found = info(name);
  if (found.bytes == 0) return;
  const uint64_t begin = found.offset / kMappedAround * kMappedAround;
  const uint64_t end =
      std::min(file_.bytes(), (found.offset + found.bytes + kMappedAround - 1) / kMappedAround * kMappedAround);
  ::madvise(map_.data() + begin, end - begin, MADV_DONTNEED);
}

void TensorFile::require_unchanged() const {
  const std::optional<FileStamp> now = stamp_of(path_);
  if (!now) {
    fail("{}: cannot be found any more; weights must stay as they are while they are in use", path_.string());
  }
  if (!(*now == file_.stamp())) {
    fail("{}: was changed while it was in use; weights must stay as they are until the program ends, so start it again",
         path_.string());
  }
}

std::string TensorFile::identity() const {
  const FileStamp& stamp = file_.stamp();
  wait_until_past(stamp);
  // Without the device, whose number differs between hosts and, on many file systems, between mounts.
  return fmt::format("{} {} {} {} {} {:016x}", path_.filename().string(), stamp.inode, stamp.bytes, stamp.modified_ns,
                     stamp.changed_ns, hash(stamp.coarse() ? Sample::kAll : Sample::kBlocks));
}

uint64_t TensorFile::hash(Sample sample) const {
  constexpr uint64_t kBlock = 4096, kPiece = uint64_t{1} << 20;
  uint64_t hash = fnv1a64({reinterpret_cast<const char*>(map_.data()), header_.bytes});
  std::vector<std::byte> bytes;
  const auto add = [&](uint64_t offset, uint64_t count) {
    bytes.resize(count);
    file_.read(offset, bytes.data(), count);
    const uint64_t sum = checksum(bytes.data(), count);
    hash = fnv1a64({reinterpret_cast<const char*>(&sum), sizeof sum}, hash);
  };
  if (sample == Sample::kAll) {
    for (uint64_t at = header_.bytes; at < file_.bytes(); at += kPiece) add(at, std::min(kPiece, file_.bytes() - at));
    return hash;
  }
  std::map<uint64_t, uint64_t> blocks;  // size by offset, in the order of the file
  for (const auto& [name, info] : tensors()) {
    const uint64_t count = std::min(kBlock, info.bytes);
    if (count > 0) blocks[info.offset + (info.bytes - count) / 2] = count;
  }
  for (const auto& [offset, count] : blocks) add(offset, count);
  return hash;
}

}  // namespace zoetrope::io
