#include "io/weights/packing_threads.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace zoetrope::io {
namespace {

// How far pages are prefetched: a few times what a disk delivers within its longest latency.
constexpr int64_t kReadAhead = int64_t{256} << 20;

}  // namespace

// A thread's memory for the decoded rows of a piece.
class PackingThreads::Scratch {
 public:
  float* floats(int64_t count) {
    if (floats_.size() < static_cast<size_t>(count)) floats_.resize(static_cast<size_t>(count));
    return floats_.data();
  }

 private:
  std::vector<float> floats_;
};

// Reserves a part of most_buffered_ while it lives.
class PackingThreads::Buffered {
 public:
  Buffered(PackingThreads& threads, int64_t bytes) : threads_(threads), bytes_(bytes) {
    std::unique_lock lock(threads_.mutex_);
    const auto fits = [&] { return threads_.buffered_ == 0 || threads_.buffered_ + bytes_ <= threads_.most_buffered_; };
    threads_.changed_.wait(lock, [&] { return bytes_ == 0 || fits(); });
    threads_.buffered_ += bytes_;
  }
  Buffered(const Buffered&) = delete;
  Buffered& operator=(const Buffered&) = delete;
  ~Buffered() {
    if (bytes_ == 0) return;
    {
      const std::lock_guard lock(threads_.mutex_);
      threads_.buffered_ -= bytes_;
    }
    threads_.changed_.notify_all();
  }

 private:
  PackingThreads& threads_;
  int64_t bytes_;
};

PackingThreads::PackingThreads(const WeightSource& source, std::vector<Job> jobs, const OnDisk& disk, int64_t buffered)
    : source_(source), jobs_(std::move(jobs)), disk_(disk), most_buffered_(buffered), left_(jobs_.size()) {
  for (const Job& job : jobs_) pieces_.push_back(pieces_of(job));
}

PackingThreads::~PackingThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

// One piece where parts cannot be packed, or reading them would be reading all each time.
PackingThreads::Pieces PackingThreads::pieces_of(const Job& job) const {
  const PackedWeight& weight = *job.weight;
  int64_t rows = 0;
  bool in_parts = weight.row_step > 0;
  for (size_t i = 0; i < weight.names.size(); ++i) {
    rows += weight.shapes[i].rank() > 0 ? weight.shapes[i][0] : 1;
    in_parts = in_parts && (source_.mapped(weight.names[i]) || source_.reads_parts(weight.names[i]));
  }
  const IndexRange all = job.rows.value_or(IndexRange{0, rows});
  if (!in_parts || all.size() == 0) return {all.size(), 1, all, true};
  const int64_t row = std::max<int64_t>(1, weight.shapes[0].size() / std::max<int64_t>(1, weight.shapes[0][0]));
  const int64_t each = round_up(std::max<int64_t>(1, kPieceElements / row), weight.row_step);
  const int64_t count = ceil_div(all.size(), each);
  return {each, count, all, count == 1 && all.size() == rows};
}

void PackingThreads::start(int threads) {
  int64_t pieces = 0;
  for (const Pieces& job : pieces_) pieces += job.count;
  const int64_t count = std::min<int64_t>(pieces, std::max(1, threads));
  for (int64_t i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
}

size_t PackingThreads::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ != nullptr || !finished_.empty(); });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  const size_t job = finished_.back();
  finished_.pop_back();
  return job;
}

std::vector<std::unique_ptr<WeightBuffer>> PackingThreads::take_repacked() {
  const std::lock_guard lock(mutex_);
  return std::exchange(repacked_, {});
}

bool PackingThreads::take_piece(Taken& taken) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || failure_ != nullptr || next_ == jobs_.size()) return false;
  taken = {next_, next_piece_, 0, 0};
  // A weight on disk is verified as a whole.
  const int64_t count = disk_.kept != nullptr ? 1 : pieces_[next_].count;
  if (next_piece_ == 0) {
    left_[next_] = count;
    taken_bytes_ += jobs_[next_].stored_bytes;
    taken.ahead = prefetched_ = std::max(prefetched_, next_ + 1);
    while (prefetched_ < jobs_.size() && prefetched_bytes_ < taken_bytes_ + kReadAhead)
      prefetched_bytes_ += jobs_[prefetched_++].stored_bytes;
    taken.ahead_end = prefetched_;
  }
  if (++next_piece_ == count) {
    ++next_;
    next_piece_ = 0;
  }
  return true;
}

bool PackingThreads::finish_piece(size_t job) {
  const std::lock_guard lock(mutex_);
  return --left_[job] == 0;
}

void PackingThreads::work() {
  try {
    Scratch scratch;
    Taken taken{};
    while (take_piece(taken)) {
      const size_t job = taken.job;
      if (disk_.kept == nullptr) {
        for (; taken.ahead < taken.ahead_end; ++taken.ahead) {
          if (pieces_[taken.ahead].all.size() == 0) continue;
          for (const std::string& name : jobs_[taken.ahead].weight->names) source_.will_need(name);
        }
        pack(job, taken.piece, scratch);
      } else if (!disk_.kept->verify(job)) {
        repack(job, scratch);
      } else if (disk_.release) {
        disk_.kept->release(job);
      }
      if (!finish_piece(job)) continue;
      if (disk_.kept == nullptr) release(*jobs_[job].weight);
      if (disk_.made != nullptr) disk_.made->finish(job);
      {
        const std::lock_guard lock(mutex_);
        finished_.push_back(job);
      }
      changed_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

void PackingThreads::release(const PackedWeight& weight) const {
  for (const std::string& name : weight.names) source_.release(name);
}

void PackingThreads::repack(size_t job, Scratch& scratch) {
  std::unique_ptr<WeightBuffer> buffer = WeightBuffer::anonymous(jobs_[job].weight->bytes);
  jobs_[job].place = buffer->data();
  for (int64_t piece = 0; piece < pieces_[job].count; ++piece) pack(job, piece, scratch);
  release(*jobs_[job].weight);
  const std::lock_guard lock(mutex_);
  repacked_.push_back(std::move(buffer));
}

void PackingThreads::pack(size_t job, int64_t piece, Scratch& scratch) {
  const PackedWeight& weight = *jobs_[job].weight;
  if (pieces_[job].all.size() == 0) return;
  if (pieces_[job].whole) pack_whole(weight, pieces_[job].all, jobs_[job].place);
  else pack_piece(weight, pieces_[job][piece], jobs_[job].place, scratch);
}

namespace {

// Rows of tensors that are joined.
struct RowPart {
  size_t tensor;
  IndexRange rows;  // of the tensor
};
std::vector<RowPart> parts_of(const PackedWeight& weight, IndexRange rows) {
  std::vector<RowPart> parts;
  int64_t first = 0;
  for (size_t i = 0; i < weight.names.size(); ++i) {
    const int64_t extent = weight.shapes[i].rank() > 0 ? weight.shapes[i][0] : 1;
    const IndexRange part{std::max(rows.begin, first) - first, std::min(rows.end, first + extent) - first};
    first += extent;
    if (part.begin < part.end) parts.push_back({i, part});
  }
  return parts;
}

}  // namespace

void PackingThreads::pack_whole(const PackedWeight& weight, IndexRange rows, std::byte* out) {
  std::vector<TensorView> stored(weight.names.size());
  int64_t unmapped = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    stored[i] = source_.mapped(weight.names[i]);
    if (!stored[i]) unmapped += static_cast<int64_t>(source_.info(weight.names[i]).bytes);
  }
  const Buffered buffered(*this, unmapped);
  std::vector<Tensor> computed;
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i]) continue;
    computed.push_back(Tensor::uninitialized(*source_.info(weight.names[i]).dtype, weight.shapes[i]));
    stored[i] = computed.back();
    source_.read(weight.names[i], stored[i]);
  }
  std::vector<TensorView> wanted;
  for (const RowPart& part : parts_of(weight, rows)) {
    const TensorView& tensor = stored[part.tensor];
    const bool all = tensor.rank() == 0 || part.rows.size() == tensor.extent(0);
    wanted.push_back(all ? tensor : tensor.slice(0, part.rows.begin, part.rows.end));
  }
  weight.pack(wanted, rows.begin, out);
}

// A piece may hold rows of several tensors.
void PackingThreads::pack_piece(const PackedWeight& weight, IndexRange rows, std::byte* out, Scratch& scratch) const {
  const std::vector<RowPart> parts = parts_of(weight, rows);
  int64_t elements = 0;
  for (const RowPart& part : parts) {
    const Shape& shape = weight.shapes[part.tensor];
    elements += part.rows.size() * (shape.size() / shape[0]);
  }
  float* decoded = scratch.floats(elements);
  std::vector<TensorView> stored;
  for (const RowPart& part : parts) {
    const std::string& name = weight.names[part.tensor];
    if (const TensorView mapped = source_.mapped(name)) {
      stored.push_back(mapped.slice(0, part.rows.begin, part.rows.end));
      continue;
    }
    Shape shape = weight.shapes[part.tensor];
    const int64_t row = shape.size() / shape[0];
    shape[0] = part.rows.size();
    const TensorView to(decoded, DType::kF32, shape);
    decoded += to.size();
    source_.read_range(name, {part.rows.begin * row, part.rows.end * row}, to.reshape({to.size()}));
    stored.push_back(to);
  }
  weight.pack(stored, rows.begin, out);
}

}  // namespace zoetrope::io
