// Calls every function that the headers of the attention library declare: what the library did not export would not
// link. Results are looked at only as far as they are obvious.
#include <zoetrope/attention.h>
#include <zoetrope/communicator.h>
#include <zoetrope/error.h>
#include <zoetrope/tensor.h>
#include <zoetrope/trace.h>
#include <zoetrope/version.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

using namespace zoetrope;

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++failures;
}

void tensors() {
  expect(dtype_size(DType::kBF16) == 2, "dtype_size");
  expect(std::strcmp(dtype_name(DType::kF32), "F32") == 0, "dtype_name");
  Shape shape{2, 3};
  shape.append(4);
  expect(shape.size() == 24 && shape.to_string() == "[2, 3, 4]" && shape == Shape{2, 3, 4}, "Shape");
  const Tensor tensor(DType::kF32, shape);
  const Tensor other = Tensor::uninitialized(DType::kU8, {1});
  const TensorView view(tensor.view().raw(), DType::kF32, shape, {12, 4, 1});
  expect(view.contiguous() && other.size() == 1, "TensorView::contiguous");
  expect(view.slice(1, 1, 3).select(0, 1).permute({1, 0}).shape() == Shape{4, 2}, "slice, select, permute");
  expect(TensorView(tensor.view().raw(), DType::kF32, shape).reshape({6, 4}).split_axis(0, 2, 3).shape() == shape,
         "reshape, split_axis");
}

void traces(const char* file) {
  trace::Trace trace, another;
  const auto now = trace::Clock::now();
  trace.record("span", 0, "compute", now, now, 1.0);
  trace.record_transfer("transfer", 0, now, now, 8, {{0, 1, 1}});
  trace.set_label(0, "a rank");
  trace.set_metadata("command", "attention_api");
  const std::vector<char> packed = trace.pack();
  another.add_packed(packed, std::chrono::nanoseconds(5));
  expect(another.size() == trace.size() && trace.size() > 0, "Trace");
  another.write(file);
}

void communicators(comm::Communicator& world) {
  world.barrier();
  const int mine = world.rank();
  std::array<int, 2> all{};
  world.all_gather(&mine, all.data(), sizeof mine);
  expect(all[0] == 0 && all[1] == 1, "all_gather");
  std::array<int, 2> again{};
  const std::array<comm::Segment, 2> receives{comm::Segment{0, &again[0], sizeof(int)}, {1, &again[1], sizeof(int)}};
  int sent = mine;
  world.all_gather_v({mine, &sent, sizeof sent}, receives);
  expect(again == all, "all_gather_v");
  again[static_cast<size_t>(1 - mine)] = -1;
  world.all_gather_in_place(receives);
  expect(again == all, "all_gather_in_place");
  int root = 7 + mine;
  world.broadcast(0, &root, sizeof root);
  expect(root == 7, "broadcast");
  expect(world.all_reduce_max(mine) == 1 && world.all_reduce_min(mine) == 0 && world.all_reduce_sum(mine) == 1,
         "all_reduce");
  comm::Work work = world.exchange({}, {}, "nothing");
  work.wait();
  expect(!work.pending(), "Work::wait");
}

void attend(comm::Communicator& world) {
  attention::StrategyOptions ring;
  ring.attention = "ring";
  const attention::Strategy strategy = attention::parse_strategy(ring, world.size(), 2);
  attention::ContextAttention planned =
      attention::plan({.tokens = 9, .heads = 2, .head_dim = 8, .log_sum_exp = true}, strategy, world, 1);
  attention::ContextAttention attention = std::move(planned);
  const int64_t tokens = attention.tokens().size();
  const Tensor x(DType::kF32, {1, tokens, 2, 8}), o(DType::kF32, x.shape()), logs(DType::kF32, {1, tokens, 2});
  attention.run(x, x, x, {}, o, logs);
  attention.run({}, o, logs);
  // Nine scores of zero.
  expect(std::fabs(logs.data<float>()[0] - std::log(9.0f)) < 1e-6f, "log_sum_exp");
  expect(attention.problem().scale > 0 && attention.layout().ring == 2, "problem, layout");
  expect(std::strcmp(parallel::softmax_name(attention.softmax()), "online") == 0, "softmax");
  expect(std::strcmp(parallel::direction_name(attention.layout().direction), "forward") == 0, "direction");
  expect(std::strcmp(parallel::kv_exchange_name(parallel::KVExchange::kInt8), "int8") == 0, "exchange");
  expect(attention.kernel()[0] != 0 && attention.input_slots().q.size() == 1, "kernel, input_slots");
  expect(attention.counters().ring.bytes_sent > 0 && attention.workspace_bytes() > 0, "counters");
  attention.reset_counters();
  expect(attention.counters().ring.bytes_sent == 0, "reset_counters");
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  expect(version()[0] != 0 && !attention::strategy_names().empty(), "version, strategy_names");
  tensors();
  traces(argv[1]);
  comm::run_ranks(2, [](comm::Communicator& world) {
    communicators(world);
    attend(world);
  });
  // An Error of the library is the program's Error.
  bool caught = false;
  attention::StrategyOptions misspelt;
  misspelt.attention = "rign";
  try {
    attention::parse_strategy(misspelt, 2, 2);
  } catch (const Error& error) {
    caught = std::string(error.what()).find("'ring'") != std::string::npos;
  }
  expect(caught, "Error");
  return failures == 0 ? 0 : 1;
}
