/* Addresses of a guest that was forked. */
#ifndef NETWORK_H
#define NETWORK_H

/* `NAME MAC ADDRESS/PREFIX GATEWAY`, what shall stay as it is as `-`. The text is taken apart. 0, or a number of
 * errno. */
int network_set(char *text);

#endif
