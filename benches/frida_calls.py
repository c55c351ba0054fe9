"""Runs a program with a counting callback of Frida's, in C, at an offset of its code: frida_calls.py PROGRAM OFFSET CALLS.

The program prints what a call takes once it may begin."""
import subprocess
import sys

import frida

program, offset, calls = sys.argv[1:4]
child = subprocess.Popen([program, calls, "wait"], stdin=subprocess.PIPE)
script = frida.attach(child.pid).create_script("""
// What C code writes to has to be given to it, and is freed with the variable that holds it.
globalThis.hits = Memory.alloc(8);
globalThis.counting = new CModule(`
#include <gum/guminterceptor.h>
extern unsigned long hits;
void hit(GumInvocationContext *context, gpointer data) { hits++; }
`, { hits });
Interceptor.attach(Process.mainModule.base.add(%s), counting.hit);
""" % offset)
script.load()
child.communicate(b"\n")
sys.exit(child.returncode)
