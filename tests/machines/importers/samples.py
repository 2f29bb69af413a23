"""Outputs of other tools, as machines print them."""

DGX1 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\t0-19,40-59\t0
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\t0-19,40-59\t0
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\t0-19,40-59\t0
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\t0-19,40-59\t0
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\t20-39,60-79\t1
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\t20-39,60-79\t1
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\t20-39,60-79\t1
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\t20-39,60-79\t1
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS
mlx5_1\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""

PCIE_BOX = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    CPU Affinity
GPU0     X      PIX     PXB     PHB     SOC     0-7
GPU1    PIX      X      PXB     PHB     SOC     0-7
GPU2    PXB     PXB      X      PHB     SOC     0-7
GPU3    PHB     PHB     PHB      X      SOC     0-7
GPU4    SOC     SOC     SOC     SOC      X      8-15
"""

SMI_BOX = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV2\tSYS\t0-19\t0\t\tN/A
GPU1\tNV2\t X \tSYS\t0-19\t0\t\tN/A
GPU2\tSYS\tSYS\t X \t20-39\t1\t\tN/A
"""

BRIDGED = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tPHB\tPHB\t0-31\tN/A
GPU1\tNV4\t X \tPHB\tPHB\t0-31\tN/A
GPU2\tPHB\tPHB\t X \tPHB\t0-31\tN/A
GPU3\tPHB\tPHB\tPHB\t X \t0-31\tN/A
"""

RCCL_XML = """\
<system version="2">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
    <pci busid="0000:05:00.0" class="0x038000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" gcn="910" rank="0"><xgmi target="0000:26:00.0" count="2" tclass="0x038000"/></gpu>
    </pci>
    <pci busid="0000:26:00.0" class="0x038000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" gcn="910" rank="1"><xgmi target="0000:05:00.0" count="2" tclass="0x038000"/></gpu>
    </pci>
  </cpu>
</system>
"""

NCCL_XML = """\
<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="0000,000fffff" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:11:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" link_width="16">
      <pci busid="0000:15:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="1">
          <nvlink target="0000:16:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:16:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="70" rank="1" gdr="1">
          <nvlink target="0000:15:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:17:00.0" class="0x020700" link_speed="8.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="100000" port="1" latency="0.0" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu host_hash="0x1" numaid="1" affinity="ffff,fff00000" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:85:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="90" rank="2" gdr="1">
        <nvlink target="0000:c1:00.0" count="9" tclass="0x068000"/>
        <nvlink target="0000:c2:00.0" count="9" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""
