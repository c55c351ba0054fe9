/* Marks parts for the program that loads it. */
#include "../../hodo-mem-marks/include/hodo-mem.h"

void begin(void) {
    hodo_mem_start();
}

void end(void) {
    hodo_mem_stop();
}
