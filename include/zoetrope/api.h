// What the shared libraries export. Everything else is compiled with hidden visibility.
#pragma once

// A function or class that a public header declares without defining it.
#define ZOETROPE_API [[gnu::visibility("default")]]
// A private member of such a class, for the library alone.
#define ZOETROPE_PRIVATE [[gnu::visibility("hidden")]]
