// MPI of one process: a progress thread that makes every MPI call, so that transfers proceed while the rank computes,
// whatever the MPI library does by itself. Not a communicator: see communicator.cpp; nor the end of a run: see
// run_mpi.cpp.
//
// The guarantee: an exchange is in MPI's hands as soon as this thread is scheduled after the post, and from then on the
// library is called again no later than an eighth of the time that nothing has moved for (5 ms at most, 20 µs at
// least), at once while something moves, and at once when the rank begins to wait. So a transfer that its peer has
// answered ends under the kernel, and a peer that is late costs a handful of polls and not thousands.
//
// All messages travel on one duplicate of MPI_COMM_WORLD; the tag is the number of the communicator, so a split makes
// no MPI communicator and cannot block where a rank is missing. MPI keeps the order of messages of equal tag.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/communicator.h"

#include "comm/mpi/watch.h"
#include "comm/stall.h"
#include "comm/transport.h"

namespace zoetrope::comm::mpi {

using Clock = std::chrono::steady_clock;

// One MPI message, at most kLargestMessage bytes.
struct Piece {
  void* data = nullptr;
  size_t bytes = 0;
  int peer = 0;  // world rank
  bool sends = false;
  bool local = false;  // to or from this rank itself: without MPI
  bool done = false;
  uint64_t number = 0;  // of the messages that its communicator sends this way between the two ranks
};

// An exchange, shared by the rank that waits for it and the thread that performs it. Guarded by the runtime's mutex
// once it is submitted.
struct Exchange {
  const char* name = "";
  int tag = 0;
  std::vector<Piece> pieces;
  size_t unfinished = 0;
  bool background = false;  // lets others go first
  bool cancelled = false;
  bool timed_out = false;  // its wait
  std::string error;
  std::shared_ptr<const StopState> stop;  // of its communicator
  // The rank's, where it is known: others wait for what the rank needs later.
  std::optional<std::thread::id> rank_thread;
  trace::Trace* trace = nullptr;
  int64_t bytes = 0;  // to and from other ranks
  Clock::time_point posted;
};

// What ranks tell each other about the end of the run; small enough to be sent eagerly by every MPI.
struct Control {
  enum class Kind : int {
    kFailed,   // to the reporter: my body failed, and this is why
    kStop,     // from the reporter: the run has failed, stop
    kEnded,    // to the collector: my body has ended
    kRelease,  // from the collector: all have ended, finalise
    kPing,     // are you there?
    kPong,
    kGivenUp,  // I have given up what I sent you with this tag: receive and drop it, so that my buffers are free
  };
  Kind kind = Kind::kPing;
  int rank = 0;          // the failed one (kFailed, kStop), else the sender
  int tag = 0;           // of kGivenUp
  bool stalled = false;  // kStop: a rank does not go on, and will hardly end by itself
  Activity activity;     // kPong: of the sender
  char text[3000] = {};  // the last member: what is not used of it is not sent
};

class Ending;

class Runtime {
  using Lock = std::unique_lock<std::mutex>;

 public:
  // The one of this process; started by the first call.
  static Runtime& instance();
  static bool started();  // and not yet gone, as it is for communicators that outlive main()

  int rank() const { return rank_; }
  int size() const { return size_; }
  int largest_tag() const { return largest_tag_; }
  std::atomic<int64_t> chosen_tags = 0;  // of communicators that this rank chose the tag of

  // Makes the messages of an exchange; throws Error where the run has failed.
  void submit(const std::shared_ptr<Exchange>& exchange);
  // Until the exchange is finished; throws Error when it failed, it was stopped, the run failed, or the deadline
  // passed.
  void wait(Exchange& exchange, const Deadline& deadline);
  // Waits of this communicator, and of those split from it, end.
  void stop(StopState& state);
  // A communicator goes away: once it or one that it comes from is stopped, what still arrives for it is dropped.
  void close(const std::shared_ptr<const StopState>& state, int tag);
  // The buffers are about to be freed: cancels what has not arrived, and has peers drop what was sent to them. Returns
  // when MPI has let go of the buffers, or when a peer has not answered: `timeout_seconds` after the exchange was made
  // or a few seconds from now, whichever is later; a second where a wait for it has timed out or the run has failed.
  // Then MPI may still use them, and all later waits of this process throw.
  void cancel(const std::shared_ptr<Exchange>& exchange, double timeout_seconds);

  // A local piece has been copied.
  void complete_local(Exchange& exchange, size_t piece);

  void set_step(std::string step);

  // The end of a run, see run_mpi.cpp. Once it has begun, a wait that passes its deadline fails on all ranks at once,
  // and so do all when a process has ended.
  void begin_run(double timeout_seconds);
  // Reports `failure` unless it is empty; returns when all ranks have ended: whether all went well.
  bool end_run(const std::string& failure, double timeout_seconds);
  // Ends MPI (or frees what was created here, if the program initialised it) and the progress thread; collective.
  void finish();
  bool finishing();  // finish() was called: no thread is left to exchange anything
  static constexpr const char* kFinished = "run_mpi() or finish_mpi() has ended MPI in this process";
  // Outside of a run this process has failed: finish() waits for the others for a few seconds, then ends the job.
  void note_failure();

  // For Ending, on the progress thread. With the mutex held.
  void send_control(int peer, Control::Kind kind, int about_rank, const std::string& text = {}, int tag = 0,
                    bool stalled = false);
  Watch& watch() { return *watch_; }
  bool in_run() const { return in_run_; }
  // Asks the others what they do, as in a wait since `begin`.
  void ask(Clock::time_point begin, double timeout_seconds);
  // A sentence on a rank whose process has ended, and in the lines after it what each rank does.
  std::string ended_process_text(int rank) const;
  // This process did not run for as long: its waits last longer.
  void note_pause(Clock::duration pause);
  // All waits throw from now on. With the mutex held.
  void set_failed(int rank, const std::string& why);

 private:
  Runtime();
  ~Runtime();

  struct BodyEnd {
    std::string failure;
    double timeout_seconds = 0;
  };
  struct Wait {
    Exchange* exchange;
    Clock::time_point begin;
    double timeout_seconds;
    bool of_rank;  // of its own thread
    bool watches;  // of a WatchingThread
  };
  struct Slot {
    std::shared_ptr<Exchange> exchange;  // null for control messages
    size_t piece = 0;
    std::unique_ptr<Control> control;  // of a control send
    bool control_receive = false;
    std::unique_ptr<std::byte[]> dropped;  // of a message that nobody wants
  };

  static const Piece& awaited(const Exchange& exchange);
  Activity activity(const Wait* wait) const;
  const Wait* main_wait() const;
  std::vector<RankState> states(const Wait* wait, double timeout_seconds) const;
  bool ready(const Exchange& exchange) const;
  bool ends_in_time(Lock& lock, const Wait& wait, const Deadline& deadline);
  [[noreturn]] void throw_timeout(const Wait& wait);

  void run();
  void initialise();
  void finalise();
  void loop();
  void start(const std::shared_ptr<Exchange>& exchange);
  bool start_background(bool at_once);
  void receive_control();
  void test();
  void complete(Slot& slot, const MPI_Status& status, int error);
  void note_done(Exchange& exchange);
  void cancel_requests(const std::vector<std::shared_ptr<Exchange>>& cancelled);
  void drop_unwanted();
  void drop_all(int tag);
  bool poll();
  void pause(bool moved);
  Clock::duration nap(Clock::time_point now) const;

  std::mutex mutex_;
  std::condition_variable work_;  // for the progress thread
  std::condition_variable done_;  // for the rank and what it has other threads do
  std::vector<std::shared_ptr<Exchange>> submitted_;
  std::vector<std::shared_ptr<Exchange>> cancelled_;
  // By sender (or MPI_ANY_SOURCE) and tag: until when its messages are dropped.
  std::map<std::pair<int, int>, Clock::time_point> dropped_;
  struct Closed {
    std::shared_ptr<const StopState> parent;  // of the communicator that has gone
    int tag;
  };
  std::deque<Closed> closed_;  // while nothing was stopped, the last ones
  bool rank_waits_ = false;
  bool wait_began_ = false;  // and the progress thread has not seen it
  bool initialised_ = false;
  bool finish_ = false;   // by finish()
  bool abandon_ = false;  // the process exits in the middle
  bool finished_ = false;
  std::string initialise_error_;
  std::optional<BodyEnd> body_end_;  // on its way to the progress thread
  int failed_rank_ = -1;
  std::string failure_;
  std::unique_ptr<Ending> ending_;
  // What this rank does, for the others.
  std::string step_;
  const char* last_operation_ = "";
  Clock::time_point last_change_ = Clock::now();  // when it entered or left an operation or began a step
  std::vector<Wait> waits_;                       // now, of all its threads
  std::optional<Activity> given_up_;              // the wait that passed its deadline, until the next post
  bool in_run_ = false, body_has_ended_ = false;
  Clock::duration paused_{};
  std::optional<std::string>
      stalled_;  // a sentence and lines on who waits for whom, on their way to the progress thread
  std::unique_ptr<Watch> watch_;

  // Touched by the progress thread alone.
  std::vector<MPI_Request> requests_;
  std::vector<Slot> slots_;
  std::deque<std::shared_ptr<Exchange>> background_;  // not yet begun
  Clock::time_point dropped_at_;                      // when it last looked for what nobody wants
  Control incoming_;
  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;
  bool owns_mpi_ = true;
  bool cores_to_spare_ = true;  // no more ranks on this host than cores
  int quiet_polls_ = 0;
  Clock::time_point quiet_since_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;

  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  std::thread thread_;
};

}  // namespace zoetrope::comm::mpi
