/* Runs SQL in an empty database and prints what it gives: `sqlite SQL`. */
#include <stdio.h>
#include "sqlite3.h"
static int row(void *unused, int count, char **values, char **names) {
    (void)unused; (void)names;
    for (int i = 0; i < count; i++) printf(i ? "|%s" : "%s", values[i] ? values[i] : "");
    putchar('\n');
    return 0;
}
int main(int argc, char **argv) {
    sqlite3 *base;
    char *error = NULL;
    if (argc != 2 || sqlite3_open(":memory:", &base)) return 2;
    if (sqlite3_exec(base, argv[1], row, NULL, &error)) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    return sqlite3_close(base);
}
