/* A library for LD_AUDIT: the loader finds no libaliquot. As LIBRARY alone, it is one that does nothing. */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <string.h>

#ifndef LIBRARY
unsigned la_version(unsigned version) { return version; }

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
    (void)cookie, (void)flag;
    return strstr(name, "libaliquot") ? NULL : (char *)name;
}
#else
int nothing_to_do;
#endif
