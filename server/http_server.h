// Connections: accepted, limited in number and in time, one request each, answered by a function. The HTTP library
// parses bodies and writes answers. Its own way of listening is not used: it lets two servers share a port, keeps five
// connections in its queue, and waits for as long as a client sends a byte now and then.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "server/api_error.h"
#include "server/request_head.h"

namespace zoetrope::server {

struct HttpOptions {
  std::string host;
  int port = 0;  // 0: any
  size_t connections = 64;
  double request_timeout = 20;  // seconds in which the head has to be here; bodies and answers have to go on as fast
  size_t most_body = size_t{64} << 20;
};

class HttpServer final : private httplib::Server {
 public:
  struct Handlers {
    std::function<void(const RequestHead&)> admit;  // before the body is read; throws ApiError
    std::function<void(const httplib::Request&, httplib::Response&)> answer;
    // For every request that was answered; the head is empty where it was none.
    std::function<void(const RequestHead&, int status, double seconds)> done;
    std::function<void()> refused;  // a connection beyond the limit
  };

  // Binds the port. Throws Error where that is not possible.
  HttpServer(const HttpOptions& options, Handlers handlers);
  ~HttpServer() override;

  int port() const { return port_; }
  void start();
  // Returns when every request was answered or cut off.
  void stop();
  int64_t connections() const { return count_; }

 private:
  enum class Stage : uint8_t { kHead, kBody, kAnswer };
  struct Connection {
    int socket = -1;
    std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    std::atomic<Stage> stage = Stage::kHead;
  };
  class Wire;
  class BodyShare;
  // What the functions that the library calls know of the connection that their thread serves.
  struct Turn {
    Connection* connection = nullptr;
    const Wire* wire = nullptr;
    const ApiError* refusal = nullptr;  // what the request is answered with instead of being handled
    int status = 0;                     // of the answer
  };
  static thread_local Turn turn_;

  void accept_connections();
  void close_refused();
  void take(int socket);
  bool make_room();
  void serve(Connection& connection);
  void answer(const httplib::Request& request, httplib::Response& response);

  const HttpOptions options_;
  const Handlers handlers_;
  int port_ = 0;
  int listener_ = -1;
  std::atomic<int64_t> count_ = 0;
  std::atomic<size_t> body_bytes_ = 0;  // of requests that are not answered yet
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::list<Connection> open_;
  struct Refused {
    int socket;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<Refused> refused_;  // of the accepting thread
  std::unique_ptr<httplib::ThreadPool> pool_;
  std::thread acceptor_;
};

}  // namespace zoetrope::server
