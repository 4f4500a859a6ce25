/* The host's end of a stream that connections share: listens on a Unix socket and passes every accepted connection on
 * as a link. It believes nothing that comes out of the guest. */
#ifndef RELAY_H
#define RELAY_H

#include <stddef.h>

int relay_main(const char *text, size_t length);

#endif
