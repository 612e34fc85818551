#include "server/http_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace zoetrope::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastRate = 65536;  // bytes a second, after the time that every request has
constexpr int kBacklog = 128;
constexpr double kPatience = 1;       // seconds after which a connection without a request gives way to a new one
constexpr double kGraceSeconds = 2;   // that answers have when the server stops
constexpr size_t kMostRefused = 64;   // connections beyond the limit that are still open for their answer
constexpr double kLingerSeconds = 2;  // for what a refused client still sends, or it would not see the answer

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

std::string busy_answer() {
  const ApiError error(503, "too_many_connections", "there are too many connections; ask again");
  const std::string body = json_text(error.body());
  return fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
}

int bound_socket(const HttpOptions& options) {
  const std::string place = fmt::format("host={} port={}", options.host, options.port);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(options.host.c_str(), fmt::to_string(options.port).c_str(), &wanted, &found);
      code != 0)
    fail("{}: is not an address of this machine: {}", place, ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  // A name may have addresses of which this machine does not have all: localhost is ::1, too, where there is no IPv6.
  int code = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const int socket = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (socket >= 0) ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (socket >= 0 && ::bind(socket, address->ai_addr, address->ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0)
      return socket;
    code = errno;
    if (socket >= 0) ::close(socket);
    if (code == EADDRINUSE)
      fail("{}: the port is in use by another program; name another one, or port=0 for any that is free", place);
  }
  fail("{}: cannot listen there: {}", place, system_message(code));
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

ApiError request_timeout() { return {408, "request_timeout", "the request did not arrive in time"}; }

}  // namespace

thread_local HttpServer::Turn HttpServer::turn_;

// What the library reads and writes: the head that was checked, then the body. Waits for the client no longer than a
// time that grows with what it sent or took.
class HttpServer::Wire final : public httplib::Stream {
 public:
  Wire(int socket, double patience) : socket_(socket), patience_(patience) {}

  // The head with its empty line; what follows stays for the body. Empty where the client went, or took too long.
  std::string read_head();
  void set_head(const std::string& head, size_t body) {
    const std::string begun = buffer_.substr(0, body);
    body_left_ = body - begun.size();
    buffer_ = head + begun;
    taken_ = 0;
  }
  bool late() const { return late_; }
  bool has_unread() const { return body_left_ > 0; }
  // So that the client reads the answer although it goes on sending.
  void linger();

  bool is_readable() const override { return true; }
  bool is_writable() const override;  // the client is still there
  ssize_t read(char* data, size_t bytes) override;
  ssize_t write(const char* data, size_t bytes) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = "";
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override { get_remote_ip_and_port(ip, port); }
  socket_t socket() const override { return socket_; }

 private:
  // False at the end of the client's time.
  bool wait(short events, double& waited, size_t moved);

  const int socket_;
  const double patience_;
  std::string buffer_;  // read ahead, or given
  size_t taken_ = 0;
  size_t body_left_ = 0;
  double waited_to_read_ = 0, waited_to_write_ = 0;
  size_t bytes_read_ = 0, bytes_written_ = 0;
  bool late_ = false;
};

bool HttpServer::Wire::wait(short events, double& waited, size_t moved) {
  // What was moved quickly gives no more time to stand still afterwards.
  const double allowed = std::min(patience_, patience_ + static_cast<double>(moved) / kLeastRate - waited);
  if (allowed <= 0) return !(late_ = true);
  const Clock::time_point begin = Clock::now();
  pollfd descriptor{socket_, events, 0};
  int ready = 0;
  do ready = ::poll(&descriptor, 1, std::max(1, static_cast<int>(1000 * (allowed - seconds_since(begin)))));
  while (ready < 0 && errno == EINTR && seconds_since(begin) < allowed);
  waited += seconds_since(begin);
  if (ready <= 0) late_ = true;
  return ready > 0;
}

std::string HttpServer::Wire::read_head() {
  constexpr std::string_view kEnd = "\r\n\r\n";
  size_t seen = 0;
  for (;;) {
    const size_t end = buffer_.find(kEnd, seen < kEnd.size() ? 0 : seen - kEnd.size());
    if (end != std::string::npos) {
      std::string head = buffer_.substr(0, end + kEnd.size());
      buffer_.erase(0, head.size());
      return head;
    }
    seen = buffer_.size();
    if (seen > kMaxHeadBytes)
      throw ApiError(431, "head_too_large",
                     fmt::format("the head of the request has more than {} bytes", kMaxHeadBytes));
    if (!wait(POLLIN, waited_to_read_, 0)) return "";
    char part[4096];
    const ssize_t count = ::recv(socket_, part, sizeof part, 0);
    if (count <= 0) return "";
    buffer_.append(part, static_cast<size_t>(count));
  }
}

ssize_t HttpServer::Wire::read(char* data, size_t bytes) {
  if (taken_ < buffer_.size()) {
    const size_t count = std::min(bytes, buffer_.size() - taken_);
    std::memcpy(data, buffer_.data() + taken_, count);
    taken_ += count;
    return static_cast<ssize_t>(count);
  }
  if (body_left_ == 0 || !wait(POLLIN, waited_to_read_, bytes_read_)) return -1;
  const ssize_t count = ::recv(socket_, data, std::min(bytes, body_left_), 0);
  if (count <= 0) return -1;
  bytes_read_ += static_cast<size_t>(count);
  body_left_ -= static_cast<size_t>(count);
  return count;
}

ssize_t HttpServer::Wire::write(const char* data, size_t bytes) {
  if (!wait(POLLOUT, waited_to_write_, bytes_written_)) return -1;
  const ssize_t count = ::send(socket_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return -1;
  bytes_written_ += static_cast<size_t>(count);
  return count;
}

bool HttpServer::Wire::is_writable() const {
  pollfd descriptor{socket_, POLLRDHUP, 0};
  return ::poll(&descriptor, 1, 0) == 0;
}

void HttpServer::Wire::linger() {
  ::shutdown(socket_, SHUT_WR);
  const Clock::time_point begin = Clock::now();
  char ignored[16384];
  while (seconds_since(begin) < kLingerSeconds) {
    pollfd descriptor{socket_, POLLIN, 0};
    const int left = static_cast<int>(1000 * (kLingerSeconds - seconds_since(begin)));
    if (::poll(&descriptor, 1, std::max(1, left)) <= 0 || ::recv(socket_, ignored, sizeof ignored, 0) <= 0) return;
  }
}

HttpServer::HttpServer(const HttpOptions& options, Handlers handlers)
    : options_(options), handlers_(std::move(handlers)), listener_(bound_socket(options)) {
  port_ = port_of(listener_);
  svr_sock_ = listener_;  // the library ends streams where there is none
  set_payload_max_length(options_.most_body);
  const auto all = [this](const httplib::Request& request, httplib::Response& response) { answer(request, response); };
  Get(".*", all).Post(".*", httplib::Server::Handler(all)).Put(".*", httplib::Server::Handler(all));
  Delete(".*", httplib::Server::Handler(all)).Patch(".*", httplib::Server::Handler(all)).Options(".*", all);
  // What the library itself refuses: a body that ends too early, a form that is none.
  set_error_handler(httplib::Server::Handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    const bool late = turn_.wire->late();
    if (late) response.status = 408;
    const ApiError error = late ? request_timeout()
                           : response.status == 404
                               ? ApiError(404, "not_found", "there is nothing under this path")
                               : ApiError(response.status, "malformed_request",
                                          "the body cannot be read: it ends early, or is not a form");
    response.set_content(json_text(error.body()), "application/json");
  }));
  set_logger([](const httplib::Request&, const httplib::Response& response) { turn_.status = response.status; });
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  pool_ = std::make_unique<httplib::ThreadPool>(options_.connections);
  acceptor_ = std::thread([this] { accept_connections(); });
}

void HttpServer::stop() {
  if (stopping_.exchange(true)) return;
  ::shutdown(listener_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  for (const Refused& refused : refused_) ::close(refused.socket);
  {
    const std::lock_guard lock(mutex_);
    for (Connection& connection : open_)
      if (connection.stage != Stage::kAnswer) ::shutdown(connection.socket, SHUT_RD);
  }
  // Answers on their way may end; who takes longer to read them is cut off.
  const Clock::time_point begin = Clock::now();
  while (count_ > 0 && seconds_since(begin) < kGraceSeconds) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  svr_sock_ = INVALID_SOCKET;
  {
    const std::lock_guard lock(mutex_);
    for (Connection& connection : open_) ::shutdown(connection.socket, SHUT_RDWR);
  }
  if (pool_) pool_->shutdown();
  ::close(listener_);
}

void HttpServer::accept_connections() {
  constexpr int kBetweenLooks = 50;  // milliseconds
  while (!stopping_) {
    close_refused();
    pollfd waiting{listener_, POLLIN, 0};
    if (!refused_.empty() && ::poll(&waiting, 1, kBetweenLooks) == 0) continue;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) {
      take(socket);
    } else if (!stopping_ && errno != EINTR && errno != ECONNABORTED) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no descriptor is left
    }
  }
}

// Reads what clients still send, and closes the connections of those that have ended or had their time.
void HttpServer::close_refused() {
  std::erase_if(refused_, [](const Refused& refused) {
    std::array<char, 65536> unread;
    const ssize_t bytes = ::recv(refused.socket, unread.data(), unread.size(), MSG_DONTWAIT);
    const bool ended = bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR);
    if (!ended && seconds_since(refused.since) < kLingerSeconds) return false;
    ::close(refused.socket);
    return true;
  });
}

void HttpServer::take(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (count_ >= static_cast<int64_t>(options_.connections) && !make_room()) {
    static const std::string busy = busy_answer();
    static_cast<void>(!::send(socket, busy.data(), busy.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    // Closed now, the rest of its request would reset it before the client has read the answer.
    ::shutdown(socket, SHUT_WR);
    refused_.push_back({socket, Clock::now()});
    if (refused_.size() > kMostRefused) {
      ::close(refused_.front().socket);
      refused_.pop_front();
    }
    handlers_.refused();
    return;
  }
  ++count_;
  Connection* connection = nullptr;
  {
    const std::lock_guard lock(mutex_);
    connection = &open_.emplace_back();
    connection->socket = socket;
  }
  pool_->enqueue([this, connection] {
    if (!stopping_) serve(*connection);
    const std::lock_guard lock(mutex_);
    ::close(connection->socket);
    open_.remove_if([&](const Connection& other) { return &other == connection; });
    --count_;
  });
}

// Cuts off the connection that has waited longest without sending its request. False where all are at work.
bool HttpServer::make_room() {
  const std::lock_guard lock(mutex_);
  for (Connection& connection : open_) {
    const double age = seconds_since(connection.begin);
    const bool slow = (connection.stage == Stage::kHead && age > kPatience) ||
                      (connection.stage == Stage::kBody && age > options_.request_timeout);
    if (!slow) continue;
    connection.stage = Stage::kAnswer;
    ::shutdown(connection.socket, SHUT_RDWR);
    return true;
  }
  return false;
}

// A request's part of the memory for bodies, until it is answered or refused.
class HttpServer::BodyShare {
 public:
  explicit BodyShare(HttpServer& server) : server_(server) {}
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() { give_back(); }

  bool take(size_t bytes) {
    if (bytes <= kSmall) return true;
    const size_t before = server_.body_bytes_.fetch_add(bytes);
    taken_ = bytes;
    const bool fits = before == 0 || before + bytes <= kLargestAtOnce * server_.options_.most_body;
    if (!fits) give_back();
    return fits;
  }
  void give_back() { server_.body_bytes_ -= std::exchange(taken_, 0); }

 private:
  static constexpr size_t kLargestAtOnce = 2, kSmall = 65536;
  HttpServer& server_;
  size_t taken_ = 0;
};

void HttpServer::serve(Connection& connection) {
  BodyShare body(*this);
  Wire wire(connection.socket, options_.request_timeout);
  RequestHead head;
  std::optional<ApiError> refused;
  try {
    const std::string text = wire.read_head();
    if (text.empty() && !wire.late()) return;
    if (text.empty()) throw request_timeout();
    head = parse_head(text, options_.most_body);
    handlers_.admit(head);
    if (!body.take(head.body_bytes)) {
      ApiError busy(503, "too_many_uploads", "the uploads of other requests fill the memory for them; ask again");
      busy.fields.emplace("Retry-After", "1");
      throw busy;
    }
    wire.set_head(cleaned_head(head), head.body_bytes);
  } catch (const ApiError& error) {
    refused = error;
    // The answer is the library's, to a request that has no body.
    const char* const method = head.method == "HEAD" ? "HEAD" : "GET";
    wire.set_head(fmt::format("{} / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", method), 0);
  }
  connection.stage = Stage::kBody;
  turn_ = {&connection, &wire, refused ? &*refused : nullptr, 0};
  const Clock::time_point begin = Clock::now();
  bool closed = false;
  process_request(wire, true, closed, nullptr);
  const double seconds = seconds_since(begin);
  const int status = turn_.status;
  turn_ = {};
  handlers_.done(head, status, seconds);
  body.give_back();
  if (refused || wire.has_unread()) wire.linger();
}

void HttpServer::answer(const httplib::Request& request, httplib::Response& response) {
  turn_.connection->stage = Stage::kAnswer;
  const auto refuse = [&](const ApiError& error) {
    response.status = error.status();
    for (const auto& [name, value] : error.fields) response.set_header(name, value);
    response.set_content(json_text(error.body()), "application/json");
  };
  try {
    if (turn_.refusal != nullptr) throw *turn_.refusal;
    handlers_.answer(request, response);
  } catch (const ApiError& error) {
    refuse(error);
  } catch (const std::exception& error) {
    refuse({500, "internal_error", error.what()});
  }
}

}  // namespace zoetrope::server
