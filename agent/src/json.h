/* As much of JSON (RFC 8259) as a configuration needs, read in place. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "bytes.h"

struct json {
    const char *at;
    const char *end;
    bool bad;
    int depth;
};

/* `first` is true before the first member. False: the object is over, or `json->bad`. The caller reads the value. */
bool json_member(struct json *json, bool *first, struct bytes *name);
/* Each leaves `json->bad` where the next value is of another kind. Strings end with a zero byte and hold no other. */
void json_string(struct json *json, struct bytes *value);
double json_number(struct json *json);
bool json_bool(struct json *json);
bool json_null(struct json *json);
void json_skip(struct json *json);
/* Whether nothing but white space follows. */
bool json_over(struct json *json);

#endif
