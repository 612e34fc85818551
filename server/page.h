// The page of the server: the files of server/page/, which are part of the program.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace zoetrope::server {

struct PageFile {
  const char* path;
  const char* type;
  const char* text;
};

// Null where there is none under this path.
const PageFile* page_file(const std::string& path);

// The fields that every answer with a part of the page has: nothing from elsewhere, no frame around it.
const std::vector<std::pair<std::string, std::string>>& page_fields();

}  // namespace zoetrope::server
