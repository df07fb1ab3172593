/* A stand-in for libnvidia-ml.so.1, for tests: answers as the state file that NVML_STUB_STATE names
   says, read again whenever that file was replaced. Layouts and codes are those of nvml.h.

   One line each:
     driver V | nvml V | cuda N | init CODE
     hang CALL | slow MS CALL | fail CODE CALL [INDEX]      CALL "*" is every call but init
     gpu uuid= bus= minor= name= mem= mig= gone= lost= persistence= remap= recovery= ecc= procs=
         fabric=STATE,STATUS,CLIQUE,MASK links=KIND@BUS,... p2p=all|none|N.N.N.
     mig gpu=INDEX uuid= gi= ci= name= mem= slices= cslices= procs=
   Names have "_" for spaces. Events: one line in the file STATE.event, "INDEX TYPE DATA GI CI",
   which is taken away when it is read. Compiled with -DOLD, it lacks what old drivers lack. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_LINKS 18
#define MAX_RULES 8
#define LIST 512

struct device {
    int used, index, parent;
    char uuid[96], bus[32], name[96], procs[64], links[LIST], p2p[64];
    unsigned minor, mig, persistence, pending, failed, recovery, gi, ci, slices, cslices;
    unsigned fabric_state, fabric_status, clique, health, fabric, gone, lost;
    unsigned long long mem, ecc;
};
struct rule { char call[64]; int code, index; unsigned ms; };
struct state {
    char driver[80], nvml[80];
    int cuda, init, gpus, migs, rules;
    struct device gpu[MAX_GPUS], mig[MAX_GPUS * 7];
    struct rule rule[MAX_RULES];
};

static struct state now;
static struct stat seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised;
/* Handles are addresses in here, so that they stay the same when the state is read again. */
static char handles[MAX_GPUS * 8];

static void word(const char *line, const char *key, char *to, size_t size) {
    char find[32];
    snprintf(find, sizeof find, " %s=", key);
    const char *at = strstr(line, find);
    to[0] = 0;
    if (!at) return;
    at += strlen(find);
    size_t n = strcspn(at, " \n");
    if (n >= size) n = size - 1;
    memcpy(to, at, n);
    to[n] = 0;
}

static unsigned long long number(const char *line, const char *key, unsigned long long otherwise) {
    char text[32];
    word(line, key, text, sizeof text);
    return text[0] ? strtoull(text, 0, 0) : otherwise;
}

static void device(struct device *d, const char *line) {
    char text[64];
    d->used = 1;
    word(line, "uuid", d->uuid, sizeof d->uuid);
    word(line, "bus", d->bus, sizeof d->bus);
    word(line, "name", d->name, sizeof d->name);
    for (char *c = d->name; *c; c++) if (*c == '_') *c = ' ';
    word(line, "procs", d->procs, sizeof d->procs);
    word(line, "links", d->links, sizeof d->links);
    word(line, "p2p", d->p2p, sizeof d->p2p);
    d->minor = number(line, "minor", d->index);
    d->mem = number(line, "mem", 0) << 20;
    d->mig = number(line, "mig", 0);
    d->gone = number(line, "gone", 0);
    d->lost = number(line, "lost", 0);
    d->persistence = number(line, "persistence", 1);
    d->recovery = number(line, "recovery", 0);
    d->ecc = number(line, "ecc", 0);
    d->gi = number(line, "gi", 0);
    d->ci = number(line, "ci", 0);
    d->parent = number(line, "gpu", 0);
    d->slices = number(line, "slices", 1);
    d->cslices = number(line, "cslices", d->slices);
    word(line, "remap", text, sizeof text);
    sscanf(text, "%u,%u", &d->pending, &d->failed);
    word(line, "fabric", text, sizeof text);
    d->fabric = sscanf(text, "%u,%u,%u,%i", &d->fabric_state, &d->fabric_status, &d->clique,
                       (int *)&d->health) == 4;
}

static void parse(FILE *file) {
    char line[2048];
    memset(&now, 0, sizeof now);
    while (fgets(line, sizeof line, file)) {
        struct rule r = {"", 0, -1, 0};
        sscanf(line, "driver %79s", now.driver);
        sscanf(line, "nvml %79s", now.nvml);
        sscanf(line, "cuda %d", &now.cuda);
        sscanf(line, "init %d", &now.init);
        if (sscanf(line, "hang %63s", r.call) == 1) r.ms = ~0u;
        else if (sscanf(line, "slow %u %63s", &r.ms, r.call) != 2)
            sscanf(line, "fail %d %63s %d", &r.code, r.call, &r.index);
        if (r.call[0] && now.rules < MAX_RULES) now.rule[now.rules++] = r;
        if (!strncmp(line, "gpu ", 4) && now.gpus < MAX_GPUS) {
            now.gpu[now.gpus].index = now.gpus;
            device(&now.gpu[now.gpus++], line);
        }
        if (!strncmp(line, "mig ", 4) && now.migs < MAX_GPUS * 7)
            device(&now.mig[now.migs++], line);
    }
}

/* A build for a whole host has its file at a fixed place: services get no variables of a test's. */
#ifndef STATE_FILE
#define STATE_FILE ""
#endif

static const char *state_file(void) {
    const char *named = getenv("NVML_STUB_STATE");
    return named ? named : STATE_FILE;
}

static void refresh(void) {
    struct stat found;
    const char *path = state_file();
    if (stat(path, &found)) return;
    if (found.st_ino == seen.st_ino && found.st_mtim.tv_nsec == seen.st_mtim.tv_nsec
        && found.st_mtim.tv_sec == seen.st_mtim.tv_sec && found.st_size == seen.st_size) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    seen = found;
    parse(file);
    fclose(file);
}

/* Copy a device out of the state, by its handle; 0 when it is there. */
static int look(void *handle, struct device *d) {
    long at = (char *)handle - handles;
    if (at < 0 || at >= (long)sizeof handles) return 2;
    struct device *from = at < MAX_GPUS ? &now.gpu[at] : &now.mig[at - MAX_GPUS];
    *d = *from;
    if (!d->used) return 6;
    int lost = at < MAX_GPUS ? d->lost : now.gpu[d->parent].lost;
    return lost ? 15 : 0;
}

/* What every call does first: follow the state, hang or wait, fail; then copy the device. */
static int enter(const char *call, void *handle, struct device *d) {
    for (unsigned waited = 0;; waited += 5) {
        int code = 0, wait = 0;
        pthread_mutex_lock(&lock);
        refresh();
        if (handle) code = look(handle, d);
        for (int i = 0; i < now.rules; i++) {
            struct rule *r = &now.rule[i];
            int every = !strcmp(r->call, "*") && strcmp(call, "nvmlInitWithFlags");
            if (!every && strcmp(r->call, call)) continue;
            if (r->ms > waited) wait = 1;
            if (r->code && (r->index < 0 || (handle && d->index == r->index))) code = r->code;
        }
        pthread_mutex_unlock(&lock);
        int first = !strcmp(call, "nvmlInitWithFlags") || !strcmp(call, "nvmlSystemGetNVMLVersion");
        if (!initialised && !first) return 1;
        if (!wait) return code;
        usleep(5000);
    }
}

#define CALL(name) do { int rc_ = enter(name, 0, 0); if (rc_) return rc_; } while (0)
#define DEVICE(name) \
    struct device d; memset(&d, 0, sizeof d); \
    do { int rc_ = enter(name, h, &d); if (rc_) return rc_; } while (0)

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char busid[32]; };
struct memory { unsigned long long total, free, used; };
struct field {
    unsigned id, scope;
    long long stamp, latency;
    unsigned type, rc;
    union { unsigned u; unsigned long long l; } value;
};
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };
struct attributes { unsigned sm, ce, dec, enc, jpg, ofa, gi, ci; unsigned long long mb; };
struct old_fabric {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
};
struct fabric {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
};

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size) return 7;
    strcpy(to, from);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = enter("nvmlInitWithFlags", 0, 0);
    if (!code) code = now.init;
    initialised = !code;
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { initialised = 0; return 0; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "RM has detected an NVML/RM version mismatch.";
    default: return "Stub Error";
    }
}
int nvmlSystemGetDriverVersion(char *to, unsigned n) {
    CALL("nvmlSystemGetDriverVersion");
    return text(to, n, now.driver);
}
int nvmlSystemGetNVMLVersion(char *to, unsigned n) {
    CALL("nvmlSystemGetNVMLVersion");
    return text(to, n, now.nvml);
}
int nvmlDeviceGetCount_v2(unsigned *to) { CALL("nvmlDeviceGetCount_v2"); *to = now.gpus; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    struct device d;
    int code = enter("nvmlDeviceGetHandleByIndex_v2", handles + index, &d);
    if (code && code != 15) return code;
    if (d.gone) return 15;
    *to = handles + index;
    return 0;
}
int nvmlDeviceGetUUID(void *h, char *to, unsigned n) {
    DEVICE("nvmlDeviceGetUUID");
    return text(to, n, d.uuid);
}
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *to) {
    struct device d;
    int code = enter("nvmlDeviceGetPciInfo_v3", h, &d);
    if (code && code != 15) return code; /* the bus id is known without the GPU */
    memset(to, 0, sizeof *to);
    strcpy(to->busid, d.bus);
    return 0;
}
int nvmlDeviceGetName(void *h, char *to, unsigned n) {
    DEVICE("nvmlDeviceGetName");
    return text(to, n, d.name);
}
int nvmlDeviceGetMinorNumber(void *h, unsigned *to) {
    DEVICE("nvmlDeviceGetMinorNumber");
    *to = d.minor;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *h, struct memory *to) {
    DEVICE("nvmlDeviceGetMemoryInfo");
    to->total = d.mem;
    to->free = d.mem;
    to->used = 0;
    return 0;
}
int nvmlDeviceGetPersistenceMode(void *h, unsigned *to) {
    DEVICE("nvmlDeviceGetPersistenceMode");
    *to = d.persistence;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, struct process *to) {
    DEVICE("nvmlDeviceGetComputeRunningProcesses_v3");
    unsigned room = *n;
    *n = 0;
    for (char *at = d.procs; *at;) {
        if (to && *n < room) { memset(&to[*n], 0, sizeof *to); to[*n].pid = strtoul(at, 0, 10); }
        ++*n;
        at += strcspn(at, ",");
        if (*at) at++;
    }
    return *n > room ? 7 : 0;
}
int nvmlDeviceGetSupportedEventTypes(void *h, unsigned long long *to) {
    DEVICE("nvmlDeviceGetSupportedEventTypes");
    *to = ~0ull;
    return 0;
}
int nvmlEventSetCreate(void **to) { CALL("nvmlEventSetCreate"); *to = &now; return 0; }
int nvmlEventSetFree(void *set) { (void)set; return 0; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long mask, void *set) {
    (void)mask;
    (void)set;
    DEVICE("nvmlDeviceRegisterEvents");
    return 0;
}
static long long now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000ll + at.tv_nsec / 1000000;
}
/* Sleep until a file comes beside the state, or for so long: a waiting driver costs nothing. Looked
   at in between all the same, since what lies behind a link or a mount tells nobody. */
static void rest(long long ms) {
    static int watch = -1;
    if (watch < 0) {
        char folder[4096], *end;
        snprintf(folder, sizeof folder, "%s", state_file());
        if ((end = strrchr(folder, '/'))) end[end == folder] = 0;
        watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        inotify_add_watch(watch, end ? folder : ".", IN_MOVED_TO | IN_CLOSE_WRITE);
        return; /* what came before is looked for once more */
    }
    struct pollfd ready = {watch, POLLIN, 0};
    char events[4096];
    if (poll(&ready, 1, ms < 500 ? ms : 500) > 0) while (read(watch, events, sizeof events) > 0);
}
int nvmlEventSetWait_v2(void *set, struct event *to, unsigned ms) {
    (void)set;
    char path[4096];
    snprintf(path, sizeof path, "%s.event", state_file());
    for (long long left, until = now_ms() + ms; (left = until - now_ms()) > 0; rest(left)) {
        CALL("nvmlEventSetWait_v2");
        FILE *file = fopen(path, "r");
        if (file) {
            int index = 0;
            unsigned gi = ~0u, ci = ~0u;
            int found = fscanf(file, "%d %llu %llu %u %u", &index, &to->type, &to->data, &gi, &ci);
            fclose(file);
            unlink(path);
            if (found >= 3) {
                to->device = handles + index;
                to->gi = gi;
                to->ci = ci;
                return 0;
            }
        }
    }
    return 10;
}

#ifndef OLD
int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    CALL("nvmlSystemGetCudaDriverVersion_v2");
    *to = now.cuda;
    return 0;
}
int nvmlDeviceGetComputeMode(void *h, unsigned *to) {
    DEVICE("nvmlDeviceGetComputeMode");
    *to = 0;
    return 0;
}
int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending) {
    DEVICE("nvmlDeviceGetMigMode");
    *current = *pending = d.mig;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *to) {
    DEVICE("nvmlDeviceGetMaxMigDeviceCount");
    *to = 7;
    return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned place, void **to) {
    DEVICE("nvmlDeviceGetMigDeviceHandleByIndex");
    /* Every other place is a hole, as after instances were destroyed. */
    int wanted = (int)place / 2, at = 0;
    if (place % 2 == 0)
        for (int i = 0; i < now.migs; i++)
            if (now.mig[i].parent == d.index && at++ == wanted) {
                *to = handles + MAX_GPUS + i;
                return 0;
            }
    return 6;
}
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *to) {
    DEVICE("nvmlDeviceGetGpuInstanceId");
    *to = d.gi;
    return 0;
}
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *to) {
    DEVICE("nvmlDeviceGetComputeInstanceId");
    *to = d.ci;
    return 0;
}
int nvmlDeviceGetAttributes_v2(void *h, struct attributes *to) {
    DEVICE("nvmlDeviceGetAttributes_v2");
    memset(to, 0, sizeof *to);
    to->gi = d.slices;
    to->ci = d.cslices;
    to->mb = d.mem >> 20;
    return 0;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *a, unsigned *b, unsigned *pending,
        unsigned *failed) {
    DEVICE("nvmlDeviceGetRemappedRows");
    *a = *b = 0;
    *pending = d.pending;
    *failed = d.failed;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *h, unsigned type, unsigned counter, unsigned long long *to) {
    (void)type;
    (void)counter;
    DEVICE("nvmlDeviceGetTotalEccErrors");
    *to = d.ecc;
    return 0;
}
static const char *link_at(struct device *d, unsigned link) {
    const char *at = d->links;
    while (link && *at) { at += strcspn(at, ","); if (*at) at++; link--; }
    return *at ? at : 0;
}
int nvmlDeviceGetFieldValues(void *h, int n, struct field *values) {
    DEVICE("nvmlDeviceGetFieldValues");
    for (int i = 0; i < n; i++) {
        values[i].rc = 0;
        if (values[i].id == 230) values[i].value.u = d.recovery;
        else if (values[i].id != 91) values[i].rc = 3;
        else for (values[i].value.u = 0; link_at(&d, values[i].value.u);) values[i].value.u++;
    }
    return 0;
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *to) {
    DEVICE("nvmlDeviceGetNvLinkState");
    const char *at = link_at(&d, link);
    if (!at) return 2;
    *to = strncmp(at, "off", 3) != 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, struct pci *to) {
    DEVICE("nvmlDeviceGetNvLinkRemotePciInfo_v2");
    const char *at = link_at(&d, link);
    if (!at) return 2;
    memset(to, 0, sizeof *to);
    if (sscanf(at, "%*[a-z]@%31[^,]", to->busid) != 1) strcpy(to->busid, "FFFFFFFF:FF:FF.0");
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned link, unsigned *to) {
    DEVICE("nvmlDeviceGetNvLinkRemoteDeviceType");
    const char *at = link_at(&d, link);
    if (!at) return 2;
    *to = !strncmp(at, "gpu", 3) ? 0 : !strncmp(at, "switch", 6) ? 2 : 255;
    return 0;
}
int nvmlDeviceGetP2PStatus(void *h, void *other, unsigned what, unsigned *to) {
    (void)what;
    DEVICE("nvmlDeviceGetP2PStatus");
    char find[16], in[72];
    snprintf(find, sizeof find, ".%ld.", (long)((char *)other - handles));
    snprintf(in, sizeof in, ".%s", d.p2p);
    *to = !d.p2p[0] || !strcmp(d.p2p, "all") || strstr(in, find) ? 0 : 5;
    return 0;
}
int nvmlDeviceGetGpuFabricInfo(void *h, struct old_fabric *to) {
    DEVICE("nvmlDeviceGetGpuFabricInfo");
    if (!d.fabric) return 3;
    memset(to->cluster, 0, sizeof to->cluster);
    to->status = d.fabric_status;
    to->clique = d.clique;
    to->state = d.fabric_state;
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void *h, struct fabric *to) {
    DEVICE("nvmlDeviceGetGpuFabricInfoV");
    if (!d.fabric) return 3;
    if (to->version != (sizeof *to | 2u << 24)) return 25;
    memset(to->cluster, 0, sizeof to->cluster);
    to->status = d.fabric_status;
    to->clique = d.clique;
    to->state = d.fabric_state;
    to->health = d.health;
    return 0;
}
#endif
