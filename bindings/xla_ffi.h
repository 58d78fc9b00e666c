// The part of XLA's foreign-function call frame that softwood's handlers read, declared by its binary layout.
//
// XLA calls a handler with one pointer to a frame that holds the arguments, results and attributes of the call. The
// layout is fixed for a major version of the interface, and minor versions only append to it, so a wheel needs no
// header of any jaxlib and serves all of them: `answer_metadata` tells XLA which version this is, and XLA refuses to
// register a handler whose version it does not support. Every structure begins with its own size, which `is_readable`
// checks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace softwood::xla {

inline constexpr int kMajorVersion = 0;
inline constexpr int kOldestMinorVersion = 1;  // the oldest with this layout
inline constexpr int kNewestMinorVersion = 3;  // the newest that this layout was compared with

enum DataType : std::int32_t { kInt32 = 4, kFloat32 = 11, kFloat64 = 12 };
enum ErrorCode : std::int32_t { kInvalidArgument = 3, kInternal = 13 };
enum Stage : std::int32_t { kExecute = 3 };

inline constexpr std::int32_t kMetadataExtension = 1;
inline constexpr std::int32_t kBufferKind = 1;
inline constexpr std::int32_t kScalarKind = 3;

struct Extension {
  std::size_t struct_size;
  std::int32_t type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major;
  int minor;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // owned by XLA once returned

struct ErrorArguments {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;  // copied by XLA
  ErrorCode code;
};

struct Api {  // more functions follow
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
};

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct Scalar {
  DataType dtype;
  void* value;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Values {  // arguments or results
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* kinds;
  void** values;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* kinds;
  Text** names;
  void** values;
};

struct Frame {  // a newer version appends to it
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Values arguments;
  Values results;
  Attributes attributes;
};

inline Error* make_error(const Frame& frame, ErrorCode code, const char* message) {
  ErrorArguments arguments{sizeof(ErrorArguments), nullptr, message, code};
  return frame.api->create_error(&arguments);
}

// Whether this frame is XLA's question for metadata; if so, it has been answered with the version of the interface.
inline bool answer_metadata(const Frame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadataExtension) return false;
  // A framework that does not show its version here is one of the oldest.
  const int known = frame.api == nullptr ? kOldestMinorVersion : frame.api->version.minor;
  const bool same_major = frame.api == nullptr || frame.api->version.major == kMajorVersion;
  const int minor = same_major ? std::clamp(known, kOldestMinorVersion, kNewestMinorVersion) : kNewestMinorVersion;
  Metadata* metadata = reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  metadata->version = Version{sizeof(Version), nullptr, kMajorVersion, minor};
  metadata->traits = 0;
  return true;
}

// The arguments (or results) as buffers of one floating type. False if something else is among them.
inline bool is_readable(const Values& values, DataType dtype) {
  if (values.struct_size < sizeof(Values)) return false;
  for (std::int64_t i = 0; i < values.size; ++i) {
    if (values.kinds[i] != kBufferKind) return false;
    const auto* buffer = static_cast<const Buffer*>(values.values[i]);
    if (buffer->struct_size < sizeof(Buffer) || buffer->dtype != dtype) return false;
  }
  return true;
}

inline const Buffer& buffer(const Values& values, std::int64_t i) {
  return *static_cast<const Buffer*>(values.values[i]);
}

// Reads a scalar attribute; false if there is none of that name and type.
template <typename T>
bool read_attribute(const Attributes& attributes, const char* name, T& value) {
  constexpr DataType dtype = sizeof(T) == 8 ? kFloat64 : kInt32;
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const Text& text = *attributes.names[i];
    if (text.size != std::strlen(name) || std::memcmp(text.data, name, text.size) != 0) continue;
    const auto* scalar = static_cast<const Scalar*>(attributes.values[i]);
    if (attributes.kinds[i] != kScalarKind || scalar->dtype != dtype) return false;
    std::memcpy(&value, scalar->value, sizeof(T));
    return true;
  }
  return false;
}

}  // namespace softwood::xla
