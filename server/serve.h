// `zoetrope serve`: the models that are opened, the jobs that wait for them, and the addresses they are asked for
// under, put together. docs/server.md describes the protocol.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "base/options.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::server {

// A model by the name that requests use, with what requests leave open.
struct ServedModel {
  std::string name;
  pipeline::GenerateOptions options;
};

// The keys of serve itself.
struct ServeOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string state;
  int64_t queue = 64;
  int64_t keep = 1000;
  std::string token, token_file;
  std::string allowed_hosts;
  std::string lora_folder;
  int64_t max_upload = 64;  // MB
  int64_t connections = 64;
  double request_timeout = 20;  // seconds
  std::string log = "jobs";
};

// Binds the keys to the fields; `options` must outlive the set.
OptionSet describe_serve_options(ServeOptions& options);

// Serves until stopped() says so, which is asked ten times a second. The job that then runs is cancelled and waits for
// the next start. Throws Error for what keeps it from starting. `world`: the ranks that mpirun started, of which rank 0
// serves and all make the videos, with waits of at most `timeout_seconds`; null: ranks are threads.
void serve(const ServeOptions& options, std::vector<ServedModel> models, const std::function<bool()>& stopped,
           comm::Communicator* world, double timeout_seconds);

}  // namespace zoetrope::server
