/* Included before code of tiles: each of their instructions comes behind one that no CPU knows.
 *
 * So what answers that trap (tile_emulator.c) does them, whether the CPU has them or not. In a macro's own text its
 * name would be the macro again, but not behind {vex}.
 */
#define SN_TRAPPED(name) ".macro " #name " operands:vararg\n ud2\n {vex} " #name " \\operands\n .endm\n"
__asm__(SN_TRAPPED(ldtilecfg) SN_TRAPPED(tilerelease) SN_TRAPPED(tilezero) SN_TRAPPED(tileloadd)
        SN_TRAPPED(tileloaddt1) SN_TRAPPED(tilestored) SN_TRAPPED(tdpbf16ps));
