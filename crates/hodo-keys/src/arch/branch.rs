//! What a branch adds to the program besides its instruction.

/// A branch with the text of its instruction, which begins at label 2 and jumps to `{other}`.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_with {
    ([$($instruction:literal),*], $key:path, $offset:expr, $likely:literal, $label:block) => {
        // SAFETY: the instruction does nothing, or jumps to the block; the rest is data in its own sections.
        unsafe {
            ::core::arch::asm!(
                $($instruction,)*
                // The linker keeps or drops the entry together with the code it describes (SHF_LINK_ORDER). For this
                // the section needs a symbol, one per function, because the assembler merges all sections with the same
                // symbol.
                ".set .Lhodo_keys_branch_{other}, 2b",
                ".pushsection hodo_keys,\"awo\",@progbits,.Lhodo_keys_branch_{other}",
                ".balign 4",
                ".set .Lhodo_keys_entry_{other}, .",
                ".long 2b - .",
                ".long {other} - .",
                #[cfg(target_arch = "x86_64")]
                ".long {key}@GOTPCREL",
                #[cfg(not(target_arch = "x86_64"))]
                ".long \".Lhodo_keys_slot_{key}\" - .",
                ".long {offset} + {likely}",
                ".popsection",
                // A relocation that does nothing, but by which linkers that fold functions with the same code (`--icf`)
                // tell them apart. It does not refer to the key, because GNU ld accepts no such relocation to other
                // libraries.
                ".reloc 2b, BFD_RELOC_NONE, .Lhodo_keys_entry_{other}",
                // The slot with the key's address, once per key; the key's own name serves as its label. It is quoted,
                // because the name may be that of another variable plus a distance.
                #[cfg(not(target_arch = "x86_64"))]
                ".ifndef \".Lhodo_keys_slot_{key}\"
                .pushsection \".data.rel.ro.hodo_keys.{key}\",\"aw\",@progbits
                .balign 8
                .set \".Lhodo_keys_slot_{key}\", .
                .quad {key}
                .popsection
                .endif",
                // Once per executable or library: the module registers itself when it is loaded, and unregisters when
                // it is unloaded.
                ".ifndef .Lhodo_keys_told",
                ".set .Lhodo_keys_told, 1",
                ".weak __start_hodo_keys",
                ".hidden __start_hodo_keys",
                ".weak __stop_hodo_keys",
                ".hidden __stop_hodo_keys",
                ".pushsection .data.hodo_keys_module,\"awG\",@progbits,hodo_keys_module,comdat",
                ".balign 8",
                ".set .Lhodo_keys_module, .",
                ".quad __start_hodo_keys - .",
                ".quad __stop_hodo_keys - .",
                ".quad 0, 0, 0, 0",
                ".popsection",
                ".pushsection .text.hodo_keys_module,\"axG\",@progbits,hodo_keys_module,comdat",
                ".set .Lhodo_keys_load, .",
                #[cfg(target_arch = "x86_64")]
                "endbr64
                lea rdi, [rip + .Lhodo_keys_module]
                jmp qword ptr [rip + {load}@GOTPCREL]",
                #[cfg(target_arch = "riscv64")]
                "lla a0, .Lhodo_keys_module
                tail {load}",
                #[cfg(target_arch = "aarch64")]
                "hint 34 // bti c
                adrp x0, .Lhodo_keys_module
                add x0, x0, :lo12:.Lhodo_keys_module
                b {load}",
                ".set .Lhodo_keys_unload, .",
                #[cfg(target_arch = "x86_64")]
                "endbr64
                lea rdi, [rip + .Lhodo_keys_module]
                jmp qword ptr [rip + {unload}@GOTPCREL]",
                #[cfg(target_arch = "riscv64")]
                "lla a0, .Lhodo_keys_module
                tail {unload}",
                #[cfg(target_arch = "aarch64")]
                "hint 34 // bti c
                adrp x0, .Lhodo_keys_module
                add x0, x0, :lo12:.Lhodo_keys_module
                b {unload}",
                // Returns whether there are compressed instructions.
                #[cfg(target_arch = "riscv64")]
                ".set .Lhodo_keys_nop, .
                nop
                .set .Lhodo_keys_nop_end, .",
                ".popsection",
                // The first constructor and the last destructor, because others may contain branches.
                ".pushsection .init_array.00100,\"awG\",@init_array,hodo_keys_module,comdat",
                ".balign 8",
                ".quad .Lhodo_keys_load",
                ".popsection",
                ".pushsection .fini_array.00100,\"awG\",@fini_array,hodo_keys_module,comdat",
                ".balign 8",
                ".quad .Lhodo_keys_unload",
                ".popsection",
                ".endif",
                key = sym $key,
                offset = const $offset,
                likely = const $likely as u32,
                load = sym $crate::__private::load,
                unload = sym $crate::__private::unload,
                other = label $label,
                // For `c.addi x31`, a step on the way from `c.nop` to `c.j`.
                #[cfg(target_arch = "riscv64")]
                out("x31") _,
                options(nomem, nostack),
            )
        }
    };
}
