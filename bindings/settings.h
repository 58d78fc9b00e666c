// Settings and arrays that Python passes by name, in a dict.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "arrays.h"

namespace softwood::bindings {

template <typename T>
T setting(const nb::dict& settings, const char* name) {
  if (!settings.contains(name)) refuse(std::string("setting ") + name + " is missing");
  return nb::cast<T>(settings[name]);
}

// A setting that is the number of one of the values of an enum, of which `last` is the last.
template <typename Enum>
Enum choice(const nb::dict& settings, const char* name, Enum last) {
  const int number = setting<int>(settings, name);
  if (number < 0 || number > static_cast<int>(last)) {
    refuse(std::string("unknown ") + name + " " + std::to_string(number));
  }
  return static_cast<Enum>(number);
}

// The named array, checked for its shape; null if it is None or missing and `optional`.
template <typename T>
T* array(const nb::dict& arrays, const std::string& name, std::initializer_list<std::int64_t> shape,
         bool optional = false) {
  if (!arrays.contains(name.c_str()) || arrays[name.c_str()].is_none()) {
    if (!optional) refuse("array " + name + " is missing");
    return nullptr;
  }
  const auto found = nb::cast<AnyOutput<T>>(arrays[name.c_str()], false);
  if (!has_shape(found, shape)) refuse("array " + name + " has the wrong shape");
  return found.data();
}

}  // namespace softwood::bindings
