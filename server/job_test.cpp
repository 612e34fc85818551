#include "server/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/test_folder.h"
#include "server/job_store.h"

namespace zoetrope::server {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

JobRecord record(int64_t number) {
  JobRecord job;
  job.id = new_job_id();
  job.number = number;
  job.model = "wan";
  job.settings = {{"prompt", "it's \"a\" cat"}, {"seed", "3"}};
  job.width = 64;
  job.height = 32;
  job.num_frames = 9;
  job.fps = 8;
  job.created_at = 1764100000;
  job.predicted_seconds = 1.5;
  job.predicted_bytes = 123456789012;
  return job;
}

TEST(Job, ComesBackFromItsFile) {
  JobRecord job = record(7);
  job.status = JobStatus::kFailed;
  job.completed_at = 1764100009;
  job.seed = 5;
  job.seconds_taken = 0.25;
  job.error = "a reason\xff";
  job.warnings = {"style.safetensors: 1 of 2 keys", "another"};
  job.uploads = {{"image", "image.png"}, {"reference_images", "reference_images_1.jpg"}};
  const JobRecord again = parse_job(job_text(job), "job.json");
  EXPECT_EQ(again.error, "a reason\xEF\xBF\xBD");  // bytes that are no UTF-8 are replaced
  job.error = again.error;
  EXPECT_EQ(job_text(again), job_text(job));
  EXPECT_EQ(again.uploads, job.uploads);
  EXPECT_EQ(again.warnings, job.warnings);
  json older = json::parse(job_text(job));
  older.erase("warnings");
  EXPECT_TRUE(parse_job(json_text(older), "job.json").warnings.empty());
}

TEST(Job, HasNothingOfTheRunThatFailedWhenItIsQueuedAgain) {
  const JobRecord asked = record(7);
  JobRecord failed = asked;
  failed.status = JobStatus::kFailed;
  failed.completed_at = 1764100009;
  failed.seconds_taken = 0.25;
  failed.model_settings = {{"dtype", "float32"}};
  failed.warnings = {"style.safetensors: 1 of 2 keys"};
  failed.error = "a reason";
  JobRecord again = queued_again(failed, 9);
  EXPECT_EQ(again.number, 9);
  again.number = asked.number;
  EXPECT_EQ(job_text(again), job_text(asked));
}

TEST(Job, RefusesFilesThatItDidNotWrite) {
  const json good = json::parse(job_text(record(1)));
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, json>>{{"format", 2},
                                                           {"id", "video_../../../../etc/passwd"},
                                                           {"id", "x"},
                                                           {"number", 0},
                                                           {"status", "sleeping"},
                                                           {"settings", {{"output", "x"}}},
                                                           {"settings", {{"seed", 3}}},
                                                           {"uploads", {{{"key", "image"}, {"file", "../x"}}}},
                                                           {"uploads", {{{"key", "prompt"}, {"file", "x"}}}},
                                                           {"uploads", {{{"key", "image"}, {"file", ""}}}},
                                                           {"width", 0},
                                                           {"fps", "8"},
                                                           {"seed", 1.5}}) {
    json bad = good;
    bad[key] = value;
    EXPECT_THAT(error_of([&] { parse_job(json_text(bad), "job.json"); }), HasSubstr("job.json")) << key << value;
    bad.erase(key);
    if (std::string(key) != "seed") {
      EXPECT_THAT(error_of([&] { parse_job(json_text(bad), "job.json"); }), HasSubstr(key)) << key;
    }
  }
}

TEST(Job, NamesAreNotGuessed) {
  const std::string a = new_job_id(), b = new_job_id();
  EXPECT_NE(a, b);
  EXPECT_TRUE(is_job_id(a));
  for (const std::string& text :
       {a + "0", a.substr(1), std::string("video_"), a.substr(0, 37) + "G", a.substr(0, 37) + "/"})
    EXPECT_FALSE(is_job_id(text)) << text;
}

TEST(Job, IsShownAsOpenAisVideo) {
  Job job;
  job.record = record(1);
  const json waiting = video_object(job, 2, 30.0);
  EXPECT_EQ(waiting["status"], "queued");
  EXPECT_EQ(waiting["queue_position"], 2);
  EXPECT_EQ(waiting["wait_seconds"], 30.0);
  EXPECT_EQ(waiting["size"], "64x32");
  EXPECT_EQ(waiting["seconds"], "1.125");
  EXPECT_EQ(waiting["command"],
            "zoetrope generate model=wan 'prompt=it'\\''s \"a\" cat' seed=3 output=" + job.record.id + ".mp4");
  job.record.status = JobStatus::kInProgress;
  job.progress = {.phase = "denoising", .step = 1, .steps = 4, .layer = 1, .layers = 2, .seconds_left = {}};
  EXPECT_EQ(video_object(job, 0, 0)["progress"], 33);
  job.progress = {.phase = "decoding", .step = 4, .steps = 4, .frame = 9, .frames = 9, .seconds_left = {}};
  EXPECT_EQ(video_object(job, 0, 0)["progress"], 99);
  job.record.status = JobStatus::kCompleted;
  EXPECT_EQ(video_object(job, 0, 0)["progress"], 100);
  job.record.status = JobStatus::kFailed;
  job.record.error = "why";
  EXPECT_EQ(video_object(job, 0, 0)["error"]["message"], "why");
  EXPECT_EQ(waiting["uploads"], json::array());
  job.record.uploads = {{"image", "image.png"}, {"mask", "mask.mp4"}};
  EXPECT_EQ(video_object(job, 0, 0)["uploads"], json::array({"image", "mask"}));
}

TEST(JobStore, GivesJobsBackInTheirOrder) {
  const TestFolder folder;
  std::vector<std::string> ids, notes;
  {
    JobStore store(folder / "state");
    for (const int64_t number : {3, 1, 2}) {
      JobRecord job = record(number);
      store.add_uploads(job, {{"latents", "bytes"}});
      store.save(job);
      ids.push_back(job.id);
    }
    EXPECT_EQ(file_bytes(store.folder_of(ids[0]) / "latents.safetensors"), "bytes");
    EXPECT_THAT(error_of([&] { JobStore other(folder / "state"); }), HasSubstr("another server"));
  }
  JobStore store(folder / "state");
  std::vector<std::string> loaded;
  for (const JobRecord& job : store.load(notes)) loaded.push_back(job.id);
  EXPECT_THAT(loaded, ElementsAre(ids[1], ids[2], ids[0]));
  EXPECT_TRUE(notes.empty());
  store.remove(ids[1]);
  EXPECT_EQ(store.load(notes).size(), 2u);
}

TEST(JobStore, SetsDamagedJobsAside) {
  const TestFolder folder;
  JobStore store(folder / "state");
  JobRecord good = record(1), cut = record(2);
  for (JobRecord* job : {&good, &cut}) {
    store.add_uploads(*job, {});
    store.save(*job);
  }
  std::filesystem::resize_file(store.folder_of(cut.id) / "job.json", 20);
  std::filesystem::create_directory(store.folder_of(new_job_id()));  // its beginning was cut off
  std::vector<std::string> notes;
  EXPECT_EQ(store.load(notes).size(), 1u);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr(cut.id));
  EXPECT_TRUE(std::filesystem::exists(store.folder() / "damaged" / cut.id / "job.json"));
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(store.folder())) folders += entry.is_directory();
  EXPECT_EQ(folders, 2u);
}

TEST(JobStore, RemovesNoJobThatItCannotLookAt) {
  const TestFolder folder;
  JobStore store(folder / "state");
  JobRecord job = record(1);
  store.add_uploads(job, {{"latents", "bytes"}});
  std::filesystem::create_symlink("job.json", store.folder_of(job.id) / "job.json");  // of itself
  std::vector<std::string> notes;
  EXPECT_TRUE(store.load(notes).empty());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr(job.id));
  EXPECT_EQ(file_bytes(store.folder() / "damaged" / job.id / "latents.safetensors"), "bytes");
}

TEST(JobStore, ATemporaryOneGoes) {
  std::filesystem::path folder;
  {
    const JobStore store("");
    folder = store.folder();
    EXPECT_TRUE(std::filesystem::exists(folder));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace zoetrope::server
