# Compiler and linker settings shared by every room.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Checks are chosen by SLACKWATER_DCHECKS, never by NDEBUG.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")

find_program(SLACKWATER_CCACHE ccache)
if(SLACKWATER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SLACKWATER_CCACHE}")
endif()

add_library(slackwater_options INTERFACE)
add_library(slackwater::options ALIAS slackwater_options)
target_compile_options(slackwater_options INTERFACE
  # Fusing is written, never implied: the same source gives the same bits on every target.
  -ffp-contract=off
  $<BUILD_INTERFACE:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers  # designated initialisers leave fields at their defaults
  -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough>)
if(PROJECT_IS_TOP_LEVEL)
  # Not in a project around this one: its compiler may warn of more.
  target_compile_options(slackwater_options INTERFACE $<BUILD_INTERFACE:-Werror>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(slackwater_options INTERFACE $<BUILD_INTERFACE:-Wthread-safety>)
endif()
if(SLACKWATER_DCHECKS)
  target_compile_definitions(slackwater_options INTERFACE SLACKWATER_DCHECKS=1)
endif()
if(SLACKWATER_MUTATION)
  target_compile_definitions(slackwater_options INTERFACE SLACKWATER_MUTATION_BUILD=1)
endif()
if(SLACKWATER_SANITIZE)
  target_compile_options(slackwater_options INTERFACE -fsanitize=${SLACKWATER_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(slackwater_options INTERFACE -fsanitize=${SLACKWATER_SANITIZE})
endif()
find_program(SLACKWATER_MOLD mold)
if(SLACKWATER_MOLD)
  target_link_options(slackwater_options INTERFACE $<BUILD_INTERFACE:-fuse-ld=mold>)
endif()
