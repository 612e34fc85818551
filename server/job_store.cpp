#include "server/job_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "server/api_error.h"

namespace zoetrope::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJobFile = "job.json";
constexpr const char* kStartsFile = "starts";
constexpr const char* kDamaged = "damaged";
constexpr size_t kMostJobBytes = size_t{1} << 20;
constexpr size_t kMostAdded = size_t{1} << 16;  // until a job ends: its settings as chosen, its error

fs::path made_temporary() {
  std::string pattern = (fs::temp_directory_path() / "zoetrope_server_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) fail("state: {} cannot be created: {}", pattern, system_message(errno));
  return pattern;
}

void remove_unfinished(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (is_unfinished_file(entry.path().filename().string())) files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file, ignored);
}

JobRecord read_job(const fs::path& folder) {
  const fs::path file = folder / kJobFile;
  // As a cache: it is replaced when the job ends.
  JobRecord job = parse_job(read_file(file, kMostJobBytes, InputFile::Kind::kCache), file.string());
  if (job.id != folder.filename()) fail("{}: is of job {}", file.string(), job.id);
  if (job.status == JobStatus::kCompleted && !fs::is_regular_file(folder / "video.mp4"))
    fail("{}: the job is completed, but its video.mp4 is missing", file.string());
  for (const auto& upload : job.uploads)
    if (!fs::is_regular_file(folder / upload.second)) fail("{}: {} is missing", file.string(), upload.second);
  return job;
}

}  // namespace

JobStore::JobStore(const fs::path& folder) : folder_(folder), temporary_(folder.empty()) {
  if (temporary_) folder_ = made_temporary();
  std::error_code error;
  // Prompts and videos are nobody else's.
  if (fs::create_directory(folder_, error)) fs::permissions(folder_, fs::perms::owner_all, error);
  if (error)
    fail("state={}: cannot be created: {}; the folder that contains it must exist", folder_.string(), error.message());
  lock_.emplace(folder_ / "lock", fmt::format("state={}", folder_.string()),
                "another server uses this folder; name another one");
}

JobStore::~JobStore() {
  std::error_code ignored;
  if (temporary_) fs::remove_all(folder_, ignored);
}

void JobStore::add_uploads(JobRecord& job, const std::vector<Upload>& uploads) {
  std::error_code error;
  fs::create_directory(folder_of(job.id), error);
  if (error) fail("state={}: cannot be written: {}", folder_.string(), error.message());
  size_t count = 0;
  for (const Upload& upload : uploads) {
    const std::string number = upload.key == "reference_images" ? fmt::format("_{}", ++count) : "";
    const std::string name = upload.key + number + upload_ending(upload);
    write_file(folder_of(job.id) / name, upload.bytes);
    job.uploads.emplace_back(upload.key, name);
  }
}

void JobStore::save(const JobRecord& job) {
  const std::string text = job_text(job);
  const size_t most = job.status == JobStatus::kQueued ? kMostJobBytes - kMostAdded : kMostJobBytes;
  if (text.size() > most)
    throw ApiError(400, "invalid_value",
                   fmt::format("the settings of the video are longer than {} bytes; shorten them", most));
  write_file(folder_of(job.id) / kJobFile, text);
}

// A byte for each.
void JobStore::count_start(const std::string& id) noexcept {
  const int file = ::open((folder_of(id) / kStartsFile).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, "s", 1);
  ::close(file);
}

void JobStore::clear_starts(const std::string& id) noexcept {
  std::error_code ignored;
  fs::remove(folder_of(id) / kStartsFile, ignored);
}

int64_t JobStore::starts(const std::string& id) const noexcept {
  std::error_code none;
  const std::uintmax_t size = fs::file_size(folder_of(id) / kStartsFile, none);
  return none ? 0 : static_cast<int64_t>(size);
}

void JobStore::remove_journal(const std::string& id) noexcept {
  std::error_code ignored;
  fs::remove_all(journal_of(id), ignored);
}

bool JobStore::forget(const std::string& id) noexcept {
  std::error_code error;
  fs::remove(folder_of(id) / kJobFile, error);
  return !error;
}

bool JobStore::remove(const std::string& id) noexcept {
  if (!forget(id)) return false;  // first: without it there is no job
  std::error_code ignored;
  fs::remove_all(folder_of(id), ignored);
  return true;
}

std::vector<JobRecord> JobStore::load(std::vector<std::string>& notes) {
  std::vector<JobRecord> jobs;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (entry.is_directory() && is_job_id(entry.path().filename().string())) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  std::set<int64_t> numbers;
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (!fs::exists(folder / kJobFile, error) && !error) {  // its beginning or its removal was cut off
      remove(folder.filename().string());
      continue;
    }
    try {
      JobRecord job = read_job(folder);
      if (!numbers.insert(job.number).second) fail("{}: another job has number {}", folder.string(), job.number);
      remove_unfinished(folder);
      jobs.push_back(std::move(job));
    } catch (const std::exception& damage) {
      fs::create_directory(folder_ / kDamaged, error);
      fs::rename(folder, folder_ / kDamaged / folder.filename(), error);
      notes.push_back(fmt::format("{}; {}", damage.what(),
                                  error ? "it stays where it is: " + error.message()
                                        : "it was moved to " + (folder_ / kDamaged / folder.filename()).string()));
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobRecord& a, const JobRecord& b) { return a.number < b.number; });
  return jobs;
}

}  // namespace zoetrope::server
