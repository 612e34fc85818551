#include "server/request_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/project_folders.h"
#include "server/api.h"
#include "server/api_error.h"
#include "server/page.h"
#include "server/serve.h"

namespace zoetrope::server {
namespace {

using testing::HasSubstr;

template <typename Body>
int status_of(Body&& body) {
  try {
    body();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

RequestHead head(const std::string& fields, const std::string& line = "POST /v1/videos HTTP/1.1") {
  return parse_head(line + "\r\n" + fields + "\r\n\r\n", 100);
}

TEST(RequestHead, IsCheckedBeforeItIsUsed) {
  EXPECT_EQ(head("Host: a\r\nContent-Length: 100").body_bytes, 100u);
  EXPECT_EQ(head("HOST:a\t").field("host"), "a");
  for (const auto& [fields, status] :
       std::initializer_list<std::pair<const char*, int>>{{"Host: a\r\nContent-Length: 101", 413},
                                                          {"Host: a\r\nContent-Length: 18446744073709551616", 413},
                                                          {"Host: a\r\nContent-Length: 1x", 400},
                                                          {"Host: a\r\nContent-Length: +1", 400},
                                                          {"Host: a\r\nHost: a", 400},
                                                          {"Content-Length: 1", 400},
                                                          {"Host: a\r\nTransfer-Encoding: chunked", 411},
                                                          {"Host: a\r\nContent-Encoding: br", 415},
                                                          {"Host: a\r\n folded: b", 400},
                                                          {"Host: a\r\nb", 400},
                                                          {"Host: a\r\nb\x01: c", 400},
                                                          {"Host: a\r\nb: c\x7f", 400},
                                                          {"Host: a\r\nb: c\nd: e", 400},
                                                          {"Host: a\r\nb: \nc", 400},
                                                          {"Host: a\r\nb: c\r", 400}})
    EXPECT_EQ(status_of([&] { head(fields); }), status) << fields;
  for (const auto& [line, status] : std::initializer_list<std::pair<const char*, int>>{{"GET / HTTP/1.0", 200},
                                                                                       {"GET / HTTP/1.2", 400},
                                                                                       {"GET /", 400},
                                                                                       {"GET a HTTP/1.1", 400},
                                                                                       {"GET /\x80 HTTP/1.1", 400},
                                                                                       {"get / HTTP/1.1", 501},
                                                                                       {"", 400}})
    EXPECT_EQ(status_of([&] { head("Host: a", line); }), status) << line;
  EXPECT_EQ(status_of([] { head("Host: a", "GET /" + std::string(3000, 'a') + " HTTP/1.1"); }), 414);
}

TEST(RequestHead, TheLibraryGetsWhatIsUsedAndNothingElse) {
  const std::string cleaned =
      cleaned_head(head("Host: a\r\nRange: bytes=1-\r\nAccept-Encoding: gzip\r\nWanted-Range: x\r\nContent-Length: 5"));
  EXPECT_EQ(cleaned,
            "POST /v1/videos HTTP/1.1\r\nHost: a\r\nWanted-Range: bytes=1-\r\nContent-Length: 5\r\nConnection: "
            "close\r\n\r\n");
}

TEST(RequestHead, FormsAreNamedAsTheLibraryReadsThem) {
  const auto type = [](const std::string& given) {
    const std::string text = cleaned_head(head("Host: a\r\nContent-Type: " + given)), name = "Content-Type: ";
    const size_t begin = text.find(name) + name.size();
    return text.substr(begin, text.find('\r', begin) - begin);
  };
  for (const char* given : {"multipart/form-data; boundary=X", "Multipart/Form-Data;BOUNDARY=X ; charset=utf-8",
                            "multipart/form-data; charset=utf-8; boundary=X"})
    EXPECT_EQ(type(given), "multipart/form-data; boundary=X") << given;
  EXPECT_EQ(type("multipart/form-data; boundary=\"X\"; a=b"), "multipart/form-data; boundary=\"X\"");
  EXPECT_EQ(type("multipart/form-data; a=b"), "multipart/form-data");
  EXPECT_EQ(type("Application/JSON; charset=utf-8"), "Application/JSON; charset=utf-8");
}

TEST(RequestHead, PagesOfOtherSitesAreRefused) {
  const auto status = [](const std::string& fields) {
    return status_of([&] { check_origin(head(fields), {"b.example"}); });
  };
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "b.example:1", "192.168.0.1"})
    EXPECT_EQ(status(std::string("Host: ") + host), 200) << host;
  for (const char* host :
       {"c.example", "localhost.c.example", "b.example.c", "127.0.0.1.c.example", "[::1", "a b", "0x7f000001"})
    EXPECT_EQ(status(std::string("Host: ") + host), 403) << host;
  EXPECT_EQ(status("Host: localhost:8000\r\nOrigin: http://localhost:8000"), 200);
  for (const char* origin : {"http://localhost", "http://localhost:80000", "null", "http://c.example", "data:"})
    EXPECT_EQ(status(std::string("Host: localhost:8000\r\nOrigin: ") + origin), 403) << origin;
  EXPECT_EQ(status("Host: localhost\r\nSec-Fetch-Site: cross-site"), 403);
  EXPECT_EQ(status("Host: localhost\r\nSec-Fetch-Site: same-origin"), 200);
}

TEST(RequestHead, TheTokenIsCompared) {
  const auto status = [](const std::string& fields) { return status_of([&] { check_token(head(fields), "abc"); }); };
  EXPECT_EQ(status("Host: a\r\nAuthorization: Bearer abc"), 200);
  EXPECT_EQ(status("Host: a\r\nAuthorization: BEARER abc"), 200);
  for (const char* given : {"Bearer", "Bearer ab", "Bearer abcd", "Bearer ABC", "Basic abc", "abc", "Bearerabc"})
    EXPECT_EQ(status(std::string("Host: a\r\nAuthorization: ") + given), 401) << given;
  EXPECT_EQ(status("Host: a"), 401);
}

TEST(ByteRange, IsTheFirstOrNone) {
  const auto range = [](const char* text, size_t size = 10) {
    const ByteRange r = parse_range(text, size);
    return std::pair(r.begin, r.end);
  };
  EXPECT_EQ(range("bytes=0-0"), std::pair(size_t{0}, size_t{1}));
  EXPECT_EQ(range("bytes=9-99"), std::pair(size_t{9}, size_t{10}));
  EXPECT_EQ(range("bytes=-3"), std::pair(size_t{7}, size_t{10}));
  EXPECT_EQ(range("bytes=-30"), std::pair(size_t{0}, size_t{10}));
  EXPECT_EQ(range("bytes=4-18446744073709551615"), std::pair(size_t{4}, size_t{10}));
  for (const char* text :
       {"bytes=5-4", "bytes=a-", "bytes=-", "bytes=1", "items=1-2", "bytes=0-1,2-3", "", "bytes=1-b"})
    EXPECT_EQ(range(text), std::pair(size_t{0}, size_t{10})) << text;
  for (const char* text : {"bytes=10-", "bytes=11-20", "bytes=-0"})
    EXPECT_EQ(status_of([&] { range(text); }), 416) << text;
  EXPECT_EQ(status_of([&] { range("bytes=0-", 0); }), 416);
}

TEST(Events, HaveALineForEachLineOfData) {
  EXPECT_EQ(event_text("progress", "{}"), "event: progress\ndata: {}\n\n");
  EXPECT_EQ(event_text("a", "b\nc\n"), "event: a\ndata: b\ndata: c\ndata: \n\n");
  EXPECT_EQ(event_text("a", ""), "event: a\ndata: \n\n");
}

TEST(Metrics, AreTextOfPrometheus) {
  Metrics metrics;
  metrics.add_request("GET", 200);
  metrics.add_request("GET", 200);
  metrics.add_run("failed", 1.5, 0.5);
  metrics.add_step();
  Gauges gauges;
  gauges.jobs = {{"queued", 3}};
  gauges.resident_bytes = 5;
  const std::string text = metrics.text(gauges);
  for (const char* line : {"# TYPE zoetrope_jobs gauge\nzoetrope_jobs{status=\"queued\"} 3\n",
                           "\nzoetrope_runs_total{status=\"failed\"} 1\n", "\nzoetrope_denoise_seconds_total 1.5\n",
                           "\nzoetrope_http_requests_total{method=\"GET\",code=\"200\"} 2\n",
                           "\nzoetrope_steps_total 1\n", "\nzoetrope_resident_bytes 5\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(Serve, KeysAreDocumented) {
  std::ostringstream text;
  text << std::ifstream(std::string(kSourceFolder) + "/docs/configuration.md").rdbuf();
  ServeOptions options;
  const std::string table = describe_serve_options(options).markdown();
  EXPECT_THAT(text.str(), HasSubstr(table)) << "docs/configuration.md should hold:\n" << table;
}

TEST(Page, LoadsNothingFromElsewhere) {
  for (const char* path : {"/", "/page.css", "/page.js"}) {
    ASSERT_NE(page_file(path), nullptr) << path;
    EXPECT_THAT(page_file(path)->text, testing::Not(HasSubstr("//cdn"))) << path;
    EXPECT_THAT(page_file(path)->text, testing::Not(HasSubstr("innerHTML"))) << path;
    EXPECT_THAT(page_file(path)->text, testing::Not(testing::ContainsRegex("https?://"))) << path;
  }
  EXPECT_EQ(page_file("/page.html"), nullptr);
}

}  // namespace
}  // namespace zoetrope::server
