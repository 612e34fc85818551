# The installed program without libzoetrope_video.so: PNG files are written, an .mp4 is refused in one sentence before
# anything is computed.
#
# cmake -DPREFIX=… -DBINDIR=… -DLIBDIR=… -DMODEL=… -DFOLDER=… -P no_videos.cmake
file(REMOVE_RECURSE ${FOLDER})
file(COPY ${PREFIX}/${BINDIR}/zoetrope DESTINATION ${FOLDER}/bin)
file(COPY ${PREFIX}/share DESTINATION ${FOLDER})

function(generate wanted sentence)
  execute_process(COMMAND ${FOLDER}/bin/zoetrope generate ${MODEL} prompt=cat height=32 width=32 num_frames=5
                          num_inference_steps=1 ${ARGN}
                  WORKING_DIRECTORY ${FOLDER} RESULT_VARIABLE code ERROR_VARIABLE errors OUTPUT_QUIET)
  if(NOT code EQUAL wanted OR NOT errors MATCHES "${sentence}")
    message(FATAL_ERROR "${ARGN}: ended with ${code}, not ${wanted}: ${errors}")
  endif()
endfunction()

set(refusal "videos other than PNG files need a library: there is no libzoetrope_video.so in ${FOLDER}/lib or ${FOLDER}/${LIBDIR}/zoetrope;")
generate(0 "" output=frames)
generate(1 "out.mp4: ${refusal}" output=out.mp4)
generate(1 "out.gif: ${refusal}" output=out.gif)
if(NOT EXISTS ${FOLDER}/frames/0004.png OR EXISTS ${FOLDER}/out.mp4)
  message(FATAL_ERROR "there is no frame, or there is a video")
endif()
execute_process(COMMAND ${FOLDER}/bin/zoetrope serve ${MODEL} port=0 TIMEOUT 60
                RESULT_VARIABLE code ERROR_VARIABLE errors OUTPUT_QUIET)
if(NOT code EQUAL 1 OR NOT errors MATCHES "${refusal}")
  message(FATAL_ERROR "the server ended with ${code}: ${errors}")
endif()
# With it beside the program the same command writes the video.
file(COPY ${PREFIX}/${LIBDIR}/zoetrope DESTINATION ${FOLDER}/${LIBDIR})
generate(0 "" output=out.mp4)
if(NOT EXISTS ${FOLDER}/out.mp4)
  message(FATAL_ERROR "there is no video")
endif()
# Also where the program is called by another name.
file(CREATE_LINK ${FOLDER}/bin/zoetrope ${FOLDER}/linked SYMBOLIC)
execute_process(COMMAND ${FOLDER}/linked generate ${MODEL} prompt=cat height=32 width=32 num_frames=5
                        num_inference_steps=1 output=linked.mp4
                WORKING_DIRECTORY ${FOLDER} RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE errors)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "called by a link it ended with ${code}: ${errors}")
endif()
