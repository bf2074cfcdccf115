/* The symbols that TensorRT's Python bindings need from its libraries, to import them without these.
 * tools/tensorrt_bindings.py compiles this once and gives it the names of all libraries. Importing and
 * inspecting the bindings calls none of these functions; a call ends the process and names itself.
 */
#include <stdio.h>
#include <stdlib.h>

#define ENTRY(symbol)                                                             \
    void *symbol(void)                                                            \
    {                                                                             \
        fputs("call of " #symbol ", but there is no TensorRT library\n", stderr); \
        abort();                                                                  \
    }

/* libnvinfer */
ENTRY(createInferBuilder_INTERNAL)
ENTRY(createInferRefitter_INTERNAL)
ENTRY(createInferRuntime_INTERNAL)
ENTRY(getBuilderPluginRegistry)
ENTRY(getPluginRegistry)

/* libnvinfer_plugin */
ENTRY(initLibNvInferPlugins)

/* libnvonnxparser */
ENTRY(createNvOnnxParser_INTERNAL)
ENTRY(createNvOnnxParserRefitter_INTERNAL)
ENTRY(getNvOnnxParserVersion)

/* libnvparsers, up to TensorRT 8: C++ functions under their mangled names */
ENTRY(_ZN11nvuffparser15createUffParserEv)
ENTRY(_ZN11nvuffparser8FieldMapC1EPKcPKvNS_9FieldTypeEi)
ENTRY(_ZN14nvcaffeparser117createCaffeParserEv)
ENTRY(_ZN14nvcaffeparser123shutdownProtobufLibraryEv)
