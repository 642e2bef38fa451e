#!/usr/bin/env python3
"""Writes CUDA sources as C++ for the emulated GPU.

  translate.py SOURCE_DIR OUTPUT_DIR FILE...

Each FILE (below SOURCE_DIR) becomes OUTPUT_DIR/FILE, a .cu becomes a .cu.cc. What changes: launches
`kernel<<<shape>>>(` become calls, and PTX goes. Lines stay where they are.
"""
import os
import re
import sys


def balanced_back(text, end, opening, closing):
    """The index of the `opening` that belongs to the `closing` at end."""
    depth = 0
    for i in range(end, -1, -1):
        if text[i] == closing:
            depth += 1
        elif text[i] == opening:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError('unbalanced ' + closing)


def translate(text):
    while True:
        at = text.find('<<<')
        if at < 0:
            break
        end = text.index('>>>', at)
        # The kernel: a name, perhaps with arguments in <>.
        last = at - 1
        while text[last].isspace():
            last -= 1
        first = balanced_back(text, last, '<', '>') - 1 if text[last] == '>' else last
        while re.match(r'[\w:]', text[first - 1]):
            first -= 1
        kernel = text[first:at]
        text = (text[:first] + '::hotrow::emulated::Configured([=](auto... values) { ' + kernel
                + '(values...); }, ' + text[at + 3:end] + ')' + text[end + 3:])
    # Loads that see what others do or bring a whole line, and the clock.
    text = re.sub(r'asm volatile\("ld\.(?:relaxed\.gpu|L2::128B)\.v4\.u32 [^;]*;"\s*:\s*"=r"\((\w+)\.x\)[^;]*"l"\((\w+)\)[^;]*;',
                  lambda m: f'{m[1]} = ::hotrow::emulated::LoadQuad({m[2]});' + '\n' * m[0].count('\n'), text)
    return re.sub(r'asm volatile\("mov.u64 %0, %%globaltimer;"\s*:\s*"=l"\((\w+)\)\);',
                  r'\1 = ::hotrow::emulated::ClockNanos();', text)


def main():
    source, output = sys.argv[1:3]
    for name in sys.argv[3:]:
        path = os.path.join(source, name)
        with open(path, encoding='utf-8') as file:
            text = file.read()
        head = '#include <cuda_runtime.h>\n' if name.endswith('.cu') else ''
        text = head + f'#line 1 "{path}"\n' + translate(text)
        target = os.path.join(output, name + ('.cc' if name.endswith('.cu') else ''))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target):
            with open(target, encoding='utf-8') as file:
                if file.read() == text:
                    continue
        with open(target, 'w', encoding='utf-8') as file:
            file.write(text)


if __name__ == '__main__':
    main()
