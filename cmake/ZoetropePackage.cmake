# What `./run package` packs with CPack: zoetrope_VERSION_amd64.deb, and zoetrope-video_VERSION_amd64.deb with the library
# that links FFmpeg. Man pages and completions are printed by the program that was built.
set(manual ${PROJECT_BINARY_DIR}/manual)
foreach(command "" attention bench calibrate completion convert generate inspect int8 man plan run serve synthesize tune verify)
  set(page zoetrope)
  if(command)
    set(page zoetrope-${command})
  endif()
  add_custom_command(OUTPUT ${manual}/${page}.1.gz
    COMMAND $<TARGET_FILE:zoetrope_program> man ${command} > ${manual}/${page}.1
    COMMAND gzip -9nf ${manual}/${page}.1
    DEPENDS zoetrope_program VERBATIM)
  list(APPEND man_pages ${manual}/${page}.1.gz)
endforeach()
foreach(shell bash zsh fish)
  add_custom_command(OUTPUT ${manual}/completion.${shell}
    COMMAND $<TARGET_FILE:zoetrope_program> completion ${shell} > ${manual}/completion.${shell}
    DEPENDS zoetrope_program VERBATIM)
  list(APPEND completions ${manual}/completion.${shell})
endforeach()
file(MAKE_DIRECTORY ${manual})
add_custom_target(zoetrope_manual ALL DEPENDS ${man_pages} ${completions})
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${manual}/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME zoetrope)
install(FILES ${manual}/completion.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _zoetrope)
install(FILES ${manual}/completion.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME zoetrope.fish)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/demo/ DESTINATION ${CMAKE_INSTALL_DATADIR}/zoetrope/demo)

# Debian's own files, which packages alone have.
set(packaging ${PROJECT_SOURCE_DIR}/packaging)
foreach(package zoetrope zoetrope-video)
  set(component debian)
  if(package STREQUAL "zoetrope-video")
    set(component debian_video)
  endif()
  install(FILES ${packaging}/${package}.copyright DESTINATION share/doc/${package} RENAME copyright
          COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(CODE "execute_process(COMMAND gzip -9nc ${packaging}/changelog
                                OUTPUT_FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/${package}/changelog.gz\")"
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME zoetrope)
set(CPACK_PACKAGE_CONTACT "The Zoetrope developers <zoetrope@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "text to video with the Wan diffusion models over many devices")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/package)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL Unspecified zoetrope attention debian video debian_video)
if(ZOETROPE_HAVE_MPI)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
endif()
foreach(component Unspecified zoetrope attention mpi debian)
  set(CPACK_COMPONENT_${component}_GROUP engine)
  string(TOUPPER ${component} upper)
  set(CPACK_COMPONENT_${upper}_GROUP engine)
endforeach()
foreach(upper VIDEO DEBIAN_VIDEO)
  set(CPACK_COMPONENT_${upper}_GROUP video)
endforeach()
set(CPACK_DEBIAN_ENGINE_PACKAGE_NAME zoetrope)
set(CPACK_DEBIAN_ENGINE_PACKAGE_SECTION video)
set(CPACK_DEBIAN_ENGINE_PACKAGE_RECOMMENDS "zoetrope-video (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_ENGINE_PACKAGE_CONTROL_EXTRA ${packaging}/triggers)
set(CPACK_DEBIAN_ENGINE_DESCRIPTION
  "The program zoetrope, the library and its headers: exact context-parallel
attention over threads and MPI, a planner, and a server with a page.")
set(CPACK_DEBIAN_VIDEO_PACKAGE_NAME zoetrope-video)
set(CPACK_DEBIAN_VIDEO_PACKAGE_SECTION video)
set(CPACK_DEBIAN_VIDEO_PACKAGE_DEPENDS "zoetrope (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_VIDEO_DESCRIPTION
  "Reads and writes videos for zoetrope with FFmpeg, parts of which are under
the GPL; zoetrope writes PNG files without it.")
include(CPack)
