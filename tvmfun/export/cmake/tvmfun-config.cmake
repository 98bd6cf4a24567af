# The package `tvmfun`: headers for programs that run exported functions.
#
#   find_package(tvmfun CONFIG REQUIRED)   # with -Dtvmfun_DIR=<tvmfun.export.CMAKE>
#   target_link_libraries(program PRIVATE tvmfun::step)
if(NOT TARGET tvmfun::step)
  add_library(tvmfun::step INTERFACE IMPORTED)
  get_filename_component(_tvmfun_include "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)
  set_target_properties(
    tvmfun::step
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_tvmfun_include}"
               INTERFACE_COMPILE_FEATURES cxx_std_17
               INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
  unset(_tvmfun_include)
endif()
