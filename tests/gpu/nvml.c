/* A stand-in for NVIDIA's driver library. The devices are the lines of the file that STAND_IN_GPUS names:
 *
 *     name|uuid|bytes of memory|index of the device that this is a slice of, or -|pid:bytes,pid:bytes
 *
 * Handles are pointers to lines. Only what regrow and Ray call is here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16
#define SUCCESS 0
#define INVALID 2
#define NOT_FOUND 6
#define TOO_SMALL 7

typedef struct { char name[96], uuid[96], users[400]; unsigned long long bytes; int parent; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } Process;

static Device devices[MOST];
static int count;

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("STAND_IN_GPUS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[800], parent[16];
    if (!file) return 9; /* no driver */
    for (count = 0; count < MOST && fgets(line, sizeof line, file);) {
        Device *d = &devices[count];
        memset(d, 0, sizeof *d);
        if (sscanf(line, "%95[^|]|%95[^|]|%llu|%15[^|]|%399[^\n]", d->name, d->uuid, &d->bytes, parent, d->users) < 4) continue;
        d->parent = parent[0] == '-' ? -1 : atoi(parent);
        count++;
    }
    fclose(file);
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == SUCCESS ? "success" : "an error of the stand-in"; }

static Device *nth(int parent, unsigned index) {
    for (int i = 0; i < count; i++)
        if (devices[i].parent == parent && index-- == 0) return &devices[i];
    return NULL;
}
static int number(const Device *device) { /* its place among whole devices */
    int found = 0;
    for (const Device *d = devices; d < device; d++) found += d->parent < 0;
    return found;
}
int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = 0;
    while (nth(-1, *n)) ++*n;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) { return (*out = nth(-1, index)) ? SUCCESS : INVALID; }
int nvmlDeviceGetName(Device *d, char *out, unsigned size) { snprintf(out, size, "%s", d->name); return SUCCESS; }
int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { snprintf(out, size, "%s", d->uuid); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {
    *out = (Memory){d->bytes, d->bytes, 0};
    return SUCCESS;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *next) {
    *now = *next = nth(number(d), 0) != NULL;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *n) { *n = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out) {
    return (*out = nth(number(d), index)) ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, Process *out) {
    unsigned found = 0, room = *n;
    for (const char *at = d->users; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL, found++)
        if (out && found < room) {
            unsigned long long bytes = 0;
            out[found] = (Process){0};
            sscanf(at, "%u:%llu", &out[found].pid, &bytes);
            out[found].bytes = bytes;
        }
    *n = found;
    return found > room ? TOO_SMALL : SUCCESS;
}
