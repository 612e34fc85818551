// text_tool FOLDER: for each JSON string line on standard input one line {"clean": …, "ids": […], "ids_raw": […]}: the
// cleaned prompt, its ids with the tokenizer of FOLDER, and those of the prompt as it came. Only for comparing with
// other implementations (tools/compare_text.py).
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "zoetrope/error.h"

#include "text/prompt.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr
        << "usage: text_tool FOLDER  (a tokenizer folder; prompts as JSON strings, one a line, on standard input)\n";
    return EXIT_FAILURE;
  }
  try {
    const auto tokenizer = zoetrope::text::Tokenizer::load(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      const auto prompt = nlohmann::json::parse(line).get<std::string>();
      nlohmann::json out;
      out["clean"] = zoetrope::text::clean_prompt(prompt);
      out["ids"] = tokenizer.encode(out["clean"].get<std::string>());
      out["ids_raw"] = tokenizer.encode(prompt);
      std::cout << out.dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << "text_tool: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
