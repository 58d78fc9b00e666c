# Code compiled for one instruction set must stay in its namespace. A weak symbol outside of it (an inline function of the
# standard library, say) exists once per instruction set under the same name, and the linker keeps one of them for all: on
# an old machine that would be an illegal instruction. Run as: cmake -DNM=... -DISA=... -DOBJECTS=... -P check_symbols.cmake
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(LENGTH ${ISA} length)
  string(REPLACE "\n" ";" symbols "${symbols}")
  set(n_own 0)
  foreach(symbol IN LISTS symbols)
    if(symbol MATCHES "${length}${ISA}")
      math(EXPR n_own "${n_own} + 1")
    elseif(symbol MATCHES " DW\\.ref\\.")
      # A pointer, no code: to the function that unwinds the stack.
    elseif(symbol MATCHES " [WVuwvTDBRC] (.*)")
      message(SEND_ERROR "${object} defines a symbol outside of its namespace: ${CMAKE_MATCH_1}")
    endif()
  endforeach()
  if(n_own EQUAL 0)
    message(SEND_ERROR "${object} defines no symbol of the namespace ${ISA}: is this the right file?")
  endif()
endforeach()
