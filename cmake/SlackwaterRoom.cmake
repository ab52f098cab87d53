# One static library and one test binary per room; the link line is the table of who may know whom.

# slackwater_room(NAME SOURCES files... [PUBLIC libs...] [PRIVATE libs...])
function(slackwater_room name)
  cmake_parse_arguments(room "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(slackwater_${name} STATIC ${room_SOURCES})
  add_library(slackwater::${name} ALIAS slackwater_${name})
  set_target_properties(slackwater_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(slackwater_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(slackwater_${name} PUBLIC cxx_std_20)
  target_link_libraries(slackwater_${name} PUBLIC ${room_PUBLIC}
                        PRIVATE slackwater::options ${room_PRIVATE})
  install(TARGETS slackwater_${name} EXPORT slackwater
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# slackwater_room_tests(NAME SOURCES files... [LIBS libs...])
#
# Registers up to four ctest entries of one binary. The suite's name says which:
#   FooSlow.Bar     label slow     (relassert only)
#   FooThreads.Bar  label threads  (relassert, dev and tsan)
#   FooSimulation.Bar  label sim   (relassert only)
#   Foo.Bar         label fast     (relassert and dev)
# An entry that selects no test fails, so a renamed suite cannot silently drop out.
function(slackwater_room_tests name)
  cmake_parse_arguments(room "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT SLACKWATER_TESTS)
    return()
  endif()
  set(binary slackwater_${name}_test)
  add_executable(${binary} ${room_SOURCES})
  target_include_directories(${binary} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${binary} PRIVATE ${room_LIBS} slackwater::options GTest::gmock
                        GTest::gtest_main)
  target_compile_definitions(${binary} PRIVATE
    SLACKWATER_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  foreach(label IN LISTS room_LABELS)
    if(label STREQUAL "fast")
      set(filter "-*Slow.*:*Slow/*:*Threads.*:*Threads/*:*Simulation.*:*Simulation/*")
    elseif(label STREQUAL "slow")
      set(filter "*Slow.*:*Slow/*")
    elseif(label STREQUAL "threads")
      set(filter "*Threads.*:*Threads/*")
    elseif(label STREQUAL "sim")
      set(filter "*Simulation.*:*Simulation/*")
    else()
      message(FATAL_ERROR "unknown test label ${label}; known: fast sim slow threads")
    endif()
    add_test(NAME ${name}.${label} COMMAND ${binary} "--gtest_filter=${filter}" --gtest_brief=1
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name}.${label} PROPERTIES LABELS ${label} TIMEOUT 900
      FAIL_REGULAR_EXPRESSION "Running 0 tests|0 tests from 0 test suites")
  endforeach()
endfunction()

# slackwater_room_bench(NAME SOURCES files... [LIBS libs...])
#
# One benchmark binary per room, slackwater_NAME_bench, only with SLACKWATER_BENCHMARKS. Not a
# test: a time is reported, never asserted.
function(slackwater_room_bench name)
  cmake_parse_arguments(room "" "" "SOURCES;LIBS" ${ARGN})
  if(NOT SLACKWATER_BENCHMARKS)
    return()
  endif()
  set(binary slackwater_${name}_bench)
  add_executable(${binary} ${room_SOURCES})
  target_include_directories(${binary} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${binary} PRIVATE ${room_LIBS} slackwater::options
                        benchmark::benchmark_main)
endfunction()

# slackwater_fuzzer(NAME SOURCE file LIBS libs...)
function(slackwater_fuzzer name)
  cmake_parse_arguments(fuzz "" "SOURCE" "LIBS" ${ARGN})
  if(NOT SLACKWATER_FUZZERS)
    return()
  endif()
  add_executable(${name} ${fuzz_SOURCE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${fuzz_LIBS} slackwater::options)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
