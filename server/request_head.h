// The head of an HTTP request, checked before anything else of it is read or done: its form, its size, who may ask. The
// HTTP library then gets a head of the few fields that the server uses, so nothing else reaches it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::server {

inline constexpr size_t kMaxHeadBytes = 16384;
inline constexpr size_t kMaxTargetBytes = 2048;
// The field Range goes by this name, so that the library leaves it alone: it takes ranges beyond the end.
inline constexpr const char* kRangeField = "Wanted-Range";

struct RequestHead {
  std::string method, target;
  std::map<std::string, std::string> fields;  // names in lower case
  size_t body_bytes = 0;

  std::string field(const std::string& name) const;  // empty: absent
};

// `text` ends in an empty line. Throws ApiError for what is not HTTP/1, for bodies without a length or of more than
// `most_body` bytes, and for encoded ones.
RequestHead parse_head(std::string_view text, size_t most_body);

// Throws ApiError unless the request is for this server under a name that is not somebody else's: an IP address,
// localhost, or one of `allowed_hosts`. A page of another origin is refused: by Origin, and by what browsers say of
// where a request comes from.
void check_origin(const RequestHead& head, const std::vector<std::string>& allowed_hosts);

// Throws ApiError 401 unless the bearer token is this one. Takes the same time wherever they differ.
void check_token(const RequestHead& head, const std::string& token);

// What the library is given.
std::string cleaned_head(const RequestHead& head);

// Bytes [begin, end) of a file.
struct ByteRange {
  size_t begin = 0, end = 0;
};
// The first and only range of "bytes=…" in a file of `size` bytes; the whole file for more than one range or what is no
// range of bytes. Throws ApiError 416 where it is beyond the end.
ByteRange parse_range(std::string_view text, size_t size);

}  // namespace zoetrope::server
