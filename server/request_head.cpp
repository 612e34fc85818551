#include "server/request_head.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/print.h"
#include "base/words.h"
#include "server/api_error.h"

namespace zoetrope::server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kBlanks = " \t";  // around a value; control characters are refused

ApiError malformed(const std::string& what) {
  return {400, "malformed_request", fmt::format("this is no HTTP request: {}", what)};
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

void parse_request_line(std::string_view line, RequestHead& head) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) throw malformed("its first line is not METHOD PATH HTTP/1.1");
  const std::string_view version = line.substr(last + 1);
  head.method = line.substr(0, first);
  head.target = line.substr(first + 1, last - first - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") throw malformed("its first line is not METHOD PATH HTTP/1.1");
  static const std::set<std::string> kMethods = {"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"};
  if (!kMethods.contains(head.method)) throw ApiError(501, "unknown_method", "this method of HTTP is not known here");
  if (head.target.size() > kMaxTargetBytes)
    throw ApiError(414, "path_too_long", fmt::format("the path has more than {} bytes", kMaxTargetBytes));
  if (!head.target.starts_with('/') || !is_visible(head.target))
    throw malformed("its path must begin with / and hold visible ASCII characters only");
}

void parse_field(std::string_view line, RequestHead& head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) throw malformed("a line is not NAME: VALUE");
  const std::string name = lower(line.substr(0, colon));
  const std::string_view value = trimmed(line.substr(colon + 1), kBlanks);
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; }))
    throw malformed("a field holds control characters");
  static const std::set<std::string> kOnce = {
      "host",  "content-length",    "content-type",     "authorization", "origin",
      "range", "transfer-encoding", "content-encoding", "sec-fetch-site"};
  if (!head.fields.emplace(name, value).second && kOnce.contains(name))
    throw malformed(fmt::format("{} is given twice", name));
}

void check_body(RequestHead& head, size_t most_body) {
  if (!head.field("transfer-encoding").empty())
    throw ApiError(411, "length_required", "send the body with Content-Length, not in chunks");
  const std::string encoding = lower(head.field("content-encoding"));
  if (!encoding.empty() && encoding != "identity")
    throw ApiError(415, "unsupported_encoding", "send the body as it is, without Content-Encoding");
  const std::string length = head.field("content-length");
  if (length.empty()) return;
  constexpr size_t kMostDigits = 18;
  const std::optional<size_t> bytes = length.size() > kMostDigits ? SIZE_MAX : to_number<size_t>(length);
  if (!bytes) throw malformed("Content-Length is not a number");
  if (*bytes > most_body)
    throw ApiError(413, "body_too_large",
                   fmt::format("the body has {} bytes, more than {} (max_upload)", length, most_body));
  head.body_bytes = *bytes;
}

// Without its port: "[::1]:8000" is ::1.
std::string host_name(const std::string& host) {
  if (host.starts_with('[')) return host.find(']') == std::string::npos ? "" : host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// The Content-Type of a form as the HTTP library reads it: in small letters, the boundary the only parameter.
std::string plain_content_type(const std::string& field) {
  constexpr std::string_view kForm = "multipart/form-data", kBoundary = "boundary=";
  const std::vector<std::string_view> parts = split(field, ';');
  if (lower(trimmed(parts.front(), kBlanks)) != kForm) return field;
  for (std::string_view part : parts) {
    part = trimmed(part, kBlanks);
    if (lower(part.substr(0, kBoundary.size())) == kBoundary)
      return fmt::format("{}; {}{}", kForm, kBoundary, part.substr(kBoundary.size()));
  }
  return std::string(kForm);
}

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> ignored{};
  return ::inet_pton(AF_INET, name.c_str(), ignored.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), ignored.data()) == 1;
}

}  // namespace

std::string RequestHead::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

RequestHead parse_head(std::string_view text, size_t most_body) {
  RequestHead head;
  bool first = true;
  while (!text.empty()) {
    const size_t end = text.find(kLineEnd);
    if (end == std::string_view::npos) throw malformed("a line has no end");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + kLineEnd.size());
    if (first) parse_request_line(line, head);
    else if (!line.empty()) parse_field(line, head);
    first = false;
  }
  if (first) throw malformed("it is empty");
  if (head.field("host").empty()) throw malformed("Host is missing");
  check_body(head, most_body);
  return head;
}

void check_origin(const RequestHead& head, const std::vector<std::string>& allowed_hosts) {
  const std::string host = lower(head.field("host")), name = host_name(host);
  const bool allowed = name == "localhost" || is_address(name) ||
                       std::find(allowed_hosts.begin(), allowed_hosts.end(), name) != allowed_hosts.end();
  if (!allowed) {
    throw ApiError(403, "host_not_allowed",
                   fmt::format("Host is '{}': ask for the server by its IP address or as localhost, or start it with "
                               "allowed_hosts={}",
                               printable(host), printable(name)));
  }
  const std::string origin = lower(head.field("origin"));
  if (!origin.empty() && origin != "http://" + host && origin != "https://" + host)
    throw ApiError(403, "origin_not_allowed", "Origin is another site: pages of other sites may not use this server");
  // A browser says so even where it sends no Origin. A link to the page of the server may be followed from anywhere.
  const std::string site = lower(head.field("sec-fetch-site"));
  const bool follows_link = head.method == "GET" && head.target == "/" && head.field("sec-fetch-mode") == "navigate";
  if ((site == "cross-site" || site == "same-site") && !follows_link)
    throw ApiError(403, "origin_not_allowed",
                   "the request comes from a page of another site, which may not use this server");
}

void check_token(const RequestHead& head, const std::string& token) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string given = head.field("authorization");
  const bool bearer = lower(given.substr(0, kScheme.size())) == kScheme;
  const std::string text = bearer ? given.substr(kScheme.size()) : "";
  // Hashes have one length, so the comparison tells nothing of the token's.
  std::array<unsigned char, SHA256_DIGEST_LENGTH> a{}, b{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), a.data());
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), b.data());
  if (::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0 && bearer) return;
  ApiError error(401, "invalid_api_key",
                 given.empty() ? "this server wants a token, as Authorization: Bearer TOKEN" : "the token is wrong");
  error.fields["WWW-Authenticate"] = "Bearer";
  throw error;
}

std::string cleaned_head(const RequestHead& head) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\n", head.method, head.target);
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += fmt::format("{}: {}\r\n", name, value);
  };
  add("Host", head.field("host"));
  add("Content-Type", plain_content_type(head.field("content-type")));
  if (head.field("expect") == "100-continue") add("Expect", "100-continue");
  add(kRangeField, head.field("range"));
  add("If-Range", head.field("if-range"));
  return text + fmt::format("Content-Length: {}\r\nConnection: close\r\n\r\n", head.body_bytes);
}

ByteRange parse_range(std::string_view text, size_t size) {
  constexpr std::string_view kUnit = "bytes=";
  const ByteRange whole{0, size};
  if (!text.starts_with(kUnit) || text.find(',') != std::string_view::npos) return whole;
  text.remove_prefix(kUnit.size());
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return whole;
  const std::string_view first_text = text.substr(0, dash), last_text = text.substr(dash + 1);
  const std::optional<size_t> first = to_number<size_t>(first_text), last = to_number<size_t>(last_text);
  if ((!first && !first_text.empty()) || (!last && !last_text.empty()) || (!first && !last)) return whole;
  ByteRange range = whole;
  if (!first) range.begin = size - std::min(*last, size);  // the last bytes
  else range.begin = *first;
  if (first && last) {
    if (*last < *first) return whole;
    range.end = std::min(size, *last == SIZE_MAX ? size : *last + 1);
  }
  if (range.begin < size && range.begin < range.end) return range;
  ApiError error(416, "range_not_satisfiable", fmt::format("the video has {} bytes", size));
  error.fields["Content-Range"] = fmt::format("bytes */{}", size);
  throw error;
}

}  // namespace zoetrope::server
