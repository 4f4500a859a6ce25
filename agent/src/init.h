/* What the first process of a machine has to do besides, and what no first process may do silently. */
#ifndef INIT_H
#define INIT_H

#include <stdbool.h>

/* proc, sys, dev and what commands expect of them. What is mounted already stays. */
void init_mount(void);
/* Ends the machine. */
void init_power_off(void);
/* A crash says so on stderr (a machine's first process: on its console), and ends the sandbox. */
void init_crash_reports(bool machine);

#endif
