# Headers, libraries, the program and the demo model, for `find_package(slackwater)`.

include(CMakePackageConfigHelpers)

# All rooms in one name, for whoever does not choose among them.
add_library(slackwater_all INTERFACE)
add_library(slackwater::slackwater ALIAS slackwater_all)
set_target_properties(slackwater_all PROPERTIES EXPORT_NAME slackwater)
target_link_libraries(slackwater_all INTERFACE slackwater::base slackwater::device
  slackwater::storage slackwater::cache slackwater::kernels slackwater::hybrid slackwater::scheduler
  slackwater::model slackwater::engine)
install(TARGETS slackwater_all EXPORT slackwater)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/demo ${PROJECT_SOURCE_DIR}/models/demo-draft
        DESTINATION ${CMAKE_INSTALL_DATADIR}/slackwater/models)
install(TARGETS slackwater_options EXPORT slackwater)
install(EXPORT slackwater NAMESPACE slackwater::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/slackwater FILE slackwater-targets.cmake)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/slackwater-config.cmake.in
  ${PROJECT_BINARY_DIR}/slackwater-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/slackwater)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/slackwater-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/slackwater-config.cmake
              ${PROJECT_BINARY_DIR}/slackwater-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/slackwater)
