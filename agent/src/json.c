#include "json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 32, NUMBER_MAX = 63 };

static char peek(struct json *json)
{
    while (json->at < json->end && strchr(" \t\r\n", *json->at) && *json->at)
        json->at++;
    return json->at < json->end ? *json->at : '\0';
}

static bool accept(struct json *json, char wanted)
{
    if (json->bad || peek(json) != wanted)
        return false;
    json->at++;
    return true;
}

static void expect(struct json *json, char wanted)
{
    if (!accept(json, wanted))
        json->bad = true;
}

static bool word(struct json *json, const char *wanted)
{
    size_t length = strlen(wanted);
    if (json->bad || peek(json) != wanted[0] || (size_t)(json->end - json->at) < length ||
        memcmp(json->at, wanted, length) != 0)
        return false;
    json->at += length;
    return true;
}

static uint32_t hexadecimal(struct json *json)
{
    uint32_t value = 0;
    for (int digit = 0; digit < 4; digit++) {
        char each = json->at < json->end ? *json->at++ : '\0';
        value <<= 4;
        if (each >= '0' && each <= '9')
            value += (uint32_t)(each - '0');
        else if (each >= 'a' && each <= 'f')
            value += (uint32_t)(each - 'a' + 10);
        else if (each >= 'A' && each <= 'F')
            value += (uint32_t)(each - 'A' + 10);
        else
            json->bad = true;
    }
    return value;
}

static void put_utf8(struct bytes *value, uint32_t code)
{
    uint8_t raw[4];
    size_t length = 0;
    if (code < 0x80) {
        raw[length++] = (uint8_t)code;
    } else if (code < 0x800) {
        raw[length++] = (uint8_t)(0xC0 | code >> 6);
    } else if (code < 0x10000) {
        raw[length++] = (uint8_t)(0xE0 | code >> 12);
        raw[length++] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
    } else {
        raw[length++] = (uint8_t)(0xF0 | code >> 18);
        raw[length++] = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        raw[length++] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
    }
    if (code >= 0x80)
        raw[length++] = (uint8_t)(0x80 | (code & 0x3F));
    bytes_put(value, raw, length);
}

/* Python writes what is no UTF-8 as a lone low surrogate of U+DC80 and up (PEP 383): that byte itself. */
static void put_escaped(struct json *json, struct bytes *value)
{
    uint32_t code = hexadecimal(json);
    if (code >= 0xD800 && code < 0xDC00 && json->end - json->at >= 6 && json->at[0] == '\\' && json->at[1] == 'u') {
        json->at += 2;
        uint32_t low = hexadecimal(json);
        if (low < 0xDC00 || low > 0xDFFF)
            json->bad = true;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC80 && code <= 0xDCFF) {
        uint8_t byte = (uint8_t)(code - 0xDC00);
        bytes_put(value, &byte, 1);
        return;
    } else if (code == 0 || (code >= 0xD800 && code < 0xE000)) {
        json->bad = true;
    }
    if (!json->bad)
        put_utf8(value, code);
}

void json_string(struct json *json, struct bytes *value)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    bytes_cut(value, 0);
    expect(json, '"');
    while (!json->bad) {
        if (json->at >= json->end || (unsigned char)*json->at < 0x20) {
            json->bad = true;
            return;
        }
        char each = *json->at++;
        if (each == '"')
            break;
        if (each != '\\') {
            bytes_put(value, &each, 1);
            continue;
        }
        each = json->at < json->end ? *json->at++ : '\0';
        const char *found = each ? strchr(names, each) : NULL;
        if (each == 'u')
            put_escaped(json, value);
        else if (found)
            bytes_put(value, &meanings[found - names], 1);
        else
            json->bad = true;
    }
    bytes_put(value, "", 1);
    if (value->failed)
        json->bad = true;
}

double json_number(struct json *json)
{
    char text[NUMBER_MAX + 1];
    size_t length = 0;
    peek(json);
    while (json->at < json->end && length < NUMBER_MAX && *json->at && strchr("+-.0123456789eE", *json->at))
        text[length++] = *json->at++;
    text[length] = '\0';
    char *rest = text;
    double value = strtod(text, &rest);
    if (!length || *rest)
        json->bad = true;
    return value;
}

bool json_bool(struct json *json)
{
    if (word(json, "true"))
        return true;
    if (!word(json, "false"))
        json->bad = true;
    return false;
}

bool json_null(struct json *json)
{
    return word(json, "null");
}

bool json_member(struct json *json, bool *first, struct bytes *name)
{
    if (*first)
        expect(json, '{');
    if (json->bad || accept(json, '}'))
        return false;
    if (!*first)
        expect(json, ',');
    *first = false;
    json_string(json, name);
    expect(json, ':');
    return !json->bad;
}

void json_skip(struct json *json)
{
    struct bytes scratch = {0};
    if (++json->depth > DEPTH_MAX)
        json->bad = true;
    char next = json->bad ? '\0' : peek(json);
    if (next == '{') {
        for (bool first = true; json_member(json, &first, &scratch);)
            json_skip(json);
    } else if (next == '[') {
        expect(json, '[');
        bool first = true;
        while (!json->bad && !accept(json, ']')) {
            if (!first)
                expect(json, ',');
            first = false;
            json_skip(json);
        }
    } else if (next == '"') {
        json_string(json, &scratch);
    } else if (next == 't' || next == 'f') {
        json_bool(json);
    } else if (next == 'n') {
        if (!json_null(json))
            json->bad = true;
    } else if (!json->bad) {
        json_number(json);
    }
    json->depth--;
    bytes_free(&scratch);
}

bool json_over(struct json *json)
{
    return !json->bad && peek(json) == '\0' && json->at == json->end;
}
